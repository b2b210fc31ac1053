//! Devices, and which of them a thread talks to.

use super::codes::{Code, INVALID_CONTEXT, INVALID_DEVICE, NO_DEVICE, NOT_INITIALIZED, OUT_OF_MEMORY};
use super::stream::Stream;
use crate::check::device::Memory;
use crate::check::fault::{Fault, Kind};
use crate::config::Config;
use crate::exec::lanes::processor_suffices;
use crate::exec::launch::{self, Launch};
use crate::report;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

pub struct Device {
    pub index: usize,
    pub memory: Memory,
    /// Kernels of a device run one after the other.
    running: Mutex<()>,
    launches: AtomicU64,
    /// The error that every call gives after a fault; 0 while all is well.
    broken: AtomicU32,
    streams: Mutex<Vec<Weak<Stream>>>,
    legacy: OnceLock<Arc<Stream>>,
}

static SYSTEM: OnceLock<Result<Vec<Device>, Code>> = OnceLock::new();

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// `cuInit`.
pub fn initialise() -> Result<(), Code> {
    let made = SYSTEM.get_or_init(|| {
        let config = Config::get();
        if !processor_suffices() {
            eprintln!("software GPU: the processor lacks AVX2, FMA, F16C or BMI");
            return Err(NO_DEVICE);
        }
        extern "C" fn at_exit() {
            report::write();
        }
        // SAFETY: the handler touches statics of this library alone, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
        (0..config.devices)
            .map(|index| {
                Ok(Device {
                    index,
                    memory: Memory::new(config.memory, config.uninitialised).ok_or(OUT_OF_MEMORY)?,
                    running: Mutex::new(()),
                    launches: AtomicU64::new(0),
                    broken: AtomicU32::new(0),
                    streams: Mutex::default(),
                    legacy: OnceLock::new(),
                })
            })
            .collect()
    });
    match made {
        Ok(devices) if devices.is_empty() => Err(NO_DEVICE),
        Ok(_) => Ok(()),
        Err(code) => Err(*code),
    }
}

pub fn devices() -> Result<&'static [Device], Code> {
    match SYSTEM.get() {
        Some(Ok(devices)) => Ok(devices),
        _ => Err(NOT_INITIALIZED),
    }
}

/// A device by its ordinal, which is also its `CUdevice`.
pub fn device(ordinal: i32) -> Result<&'static Device, Code> {
    let devices = devices()?;
    usize::try_from(ordinal).ok().and_then(|i| devices.get(i)).ok_or(INVALID_DEVICE)
}

/// The `CUcontext` of a device: one for each, which all kinds of contexts share.
pub fn context_handle(device: &Device) -> usize {
    0x5000_0000 + 16 * device.index
}

pub fn of_context(handle: usize) -> Result<&'static Device, Code> {
    devices()?.iter().find(|d| context_handle(d) == handle).ok_or(INVALID_CONTEXT)
}

pub fn set_current(device: Option<&Device>) {
    CURRENT.set(device.map(|d| d.index));
}

pub fn current_index() -> Option<usize> {
    CURRENT.get()
}

/// The device of the thread's context, whether or not it has failed.
pub fn current_any() -> Result<&'static Device, Code> {
    let index = CURRENT.get().ok_or(INVALID_CONTEXT)?;
    devices()?.get(index).ok_or(INVALID_CONTEXT)
}

/// The device of the thread's context. After a fault: the error of it.
pub fn current() -> Result<&'static Device, Code> {
    let device = current_any()?;
    device.check()?;
    Ok(device)
}

/// The device that an address is on.
pub fn of_address(address: u64) -> Option<&'static Device> {
    devices().ok()?.iter().find(|d| d.memory.contains(address))
}

impl Device {
    pub fn check(&self) -> Result<(), Code> {
        match self.broken.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Notes a fault. It stays: the device's context is of no use any more, as on a device.
    pub fn fail(&self, fault: &Fault) {
        report::fault(self.index, fault);
        let _ = self.broken.compare_exchange(0, fault.kind.code(), Ordering::AcqRel, Ordering::Acquire);
    }

    pub fn legacy(&'static self) -> &'static Arc<Stream> {
        self.legacy.get_or_init(|| Stream::new(self, true))
    }

    pub fn add_stream(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams.lock().expect("no panic holds it");
        streams.retain(|s| s.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    /// All streams that work may still be on, the legacy stream included.
    pub fn streams(&'static self) -> Vec<Arc<Stream>> {
        let mut all: Vec<Arc<Stream>> = Vec::new();
        all.extend(self.legacy.get().cloned());
        all.extend(self.streams.lock().expect("no panic holds it").iter().filter_map(Weak::upgrade));
        all
    }

    /// Waits for all work of the device.
    pub fn synchronise(&'static self) -> Result<(), Code> {
        for stream in self.streams() {
            stream.synchronise()?;
        }
        self.check()
    }

    pub fn run(&self, launch: &Launch) -> Result<(), Fault> {
        let _one = self.running.lock().unwrap_or_else(|p| p.into_inner());
        let number = self.launches.fetch_add(1, Ordering::Relaxed) + 1;
        let config = Config::get();
        if config.lose == Some((self.index, number)) {
            let message =
                format!("device {} is lost at launch {number}, of kernel `{}`", self.index, launch.kernel.name);
            return Err(Fault { kind: Kind::Lost, place: None, message });
        }
        let (counters, fault) = launch::run(launch, &self.memory, config);
        report::kernel(self.index, &launch.kernel.name, &counters);
        fault.map_or(Ok(()), Err)
    }
}
