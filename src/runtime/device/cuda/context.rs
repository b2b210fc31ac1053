//! A device as this process uses it: its memory, streams, events, kernels and graphs. Addresses of its memory are numbers.

use super::driver::{Driver, driver};
use crate::runtime::RuntimeError;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

type Handle = *mut c_void;

const OUT_OF_MEMORY: u32 = 2;
const MAJOR: c_uint = 75;
const MINOR: c_uint = 76;
/// Of dynamic shared memory that a function may use.
const SHARED: c_uint = 8;
/// Shared memory that every kernel may use without asking.
const USUAL_SHARED: u32 = 48 << 10;
const NOT_READY: u32 = 600;

fn absent() -> Result<&'static Driver, RuntimeError> {
    driver().map_err(|a| a.error())
}

/// What an error code says.
fn told(d: &Driver, code: u32) -> String {
    let text = |f: unsafe extern "C" fn(u32, *mut *const c_char) -> u32| {
        let mut at: *const c_char = std::ptr::null();
        // SAFETY: the driver gives a string that lives as long as itself.
        unsafe {
            match f(code, &mut at) {
                0 if !at.is_null() => CStr::from_ptr(at).to_string_lossy().into_owned(),
                _ => String::new(),
            }
        }
    };
    format!("{} ({code}): {}", text(d.error_name), text(d.error_text))
}

/// A failed call of the driver.
fn failed(d: &Driver, code: u32, doing: &str) -> RuntimeError {
    let error = RuntimeError::new("E0818", format!("the GPU failed at {doing}: {}", told(d, code)));
    match code {
        OUT_OF_MEMORY => RuntimeError::new("E0811", format!("out of memory of the GPU at {doing}"))
            .help("use a smaller batch or model, `precision bf16`, or more GPUs"),
        // Launch failures leave nothing behind that can be used.
        700..=719 => error.help("this is a mistake in partita or a fault of the device; please report it"),
        _ => error,
    }
}

/// The driver once it has begun, and how many devices it has.
fn begun() -> Result<(&'static Driver, usize), RuntimeError> {
    static BEGUN: OnceLock<Result<usize, u32>> = OnceLock::new();
    let d = absent()?;
    let begin = || {
        let mut count = 0;
        // SAFETY: a number to write to.
        match unsafe { (d.init)(0) } {
            0 => {}
            code => return Err(code),
        }
        // SAFETY: as above.
        match unsafe { (d.count)(&mut count) } {
            0 => Ok(usize::try_from(count).unwrap_or(0)),
            code => Err(code),
        }
    };
    match BEGUN.get_or_init(begin) {
        Ok(0) | Err(100) => Err(RuntimeError::new("E0817", format!("the driver ({}) has no GPU", d.path))
            .help("is CUDA_VISIBLE_DEVICES set? Use `--device cpu` to run on the processor")),
        Ok(n) => Ok((d, *n)),
        Err(code) => {
            Err(RuntimeError::new("E0817", format!("the driver ({}) does not begin: {}", d.path, told(d, *code)))
                .help("use `--device cpu` to run on the processor"))
        }
    }
}

pub fn count() -> Result<usize, RuntimeError> {
    begun().map(|(_, n)| n)
}

pub fn driver_version() -> String {
    let mut version = 0;
    if let Ok(d) = driver() {
        // SAFETY: a number to write to.
        unsafe { (d.version)(&mut version) };
    }
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

pub fn driver_path() -> &'static str {
    driver().map_or("", |d| &d.path)
}

/// The compute capability of a device, as 90 for 9.0, without using it.
pub fn capability(ordinal: usize) -> Result<u32, RuntimeError> {
    let (d, _) = begun()?;
    let (mut major, mut minor, mut device) = (0, 0, 0);
    // SAFETY: places to write to.
    let codes = unsafe {
        let got = (d.get)(&mut device, ordinal as c_int);
        [got, (d.attribute)(&mut major, MAJOR, device), (d.attribute)(&mut minor, MINOR, device)]
    };
    match codes.into_iter().find(|c| *c != 0) {
        Some(code) => Err(failed(d, code, &format!("asking for device {ordinal}"))),
        None => Ok((major * 10 + minor) as u32),
    }
}

/// Name, capability and memory of a device.
pub fn describe(ordinal: usize) -> Result<String, RuntimeError> {
    let c = Context::open(ordinal)?;
    let gib = |bytes: usize| bytes as f64 / (1u64 << 30) as f64;
    let (free, total) = c.memory()?;
    Ok(format!("{}, sm_{}, {:.1} of {:.1} GiB free", c.name, c.arch, gib(free), gib(total)))
}

/// A device in use. Calls are for the device that is current on their thread: see [`Context::enter`].
pub struct Context {
    d: &'static Driver,
    handle: Handle,
    ordinal: c_int,
    pub name: String,
    /// Compute capability, as 90 for 9.0.
    pub arch: u32,
}

// SAFETY: handles of the driver may be used on any thread.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks by itself.
unsafe impl Sync for Context {}

impl Context {
    /// A device by its number.
    pub fn open(ordinal: usize) -> Result<Arc<Context>, RuntimeError> {
        let (d, count) = begun()?;
        if ordinal >= count {
            let why = format!("there is no GPU {ordinal}: the driver has {count}, numbered from 0");
            return Err(RuntimeError::new("E0817", why).help("name others, as in `--device cuda:0`"));
        }
        let mut device = 0;
        let mut handle: Handle = std::ptr::null_mut();
        let mut name = [0 as c_char; 128];
        let (mut major, mut minor) = (0, 0);
        // SAFETY: places to write to, of the sizes that are said.
        let code = unsafe {
            [
                (d.get)(&mut device, ordinal as c_int),
                (d.name)(name.as_mut_ptr(), name.len() as c_int, device),
                (d.attribute)(&mut major, MAJOR, device),
                (d.attribute)(&mut minor, MINOR, device),
                (d.retain)(&mut handle, device),
            ]
        };
        if let Some(code) = code.into_iter().find(|c| *c != 0) {
            return Err(failed(d, code, &format!("opening device {ordinal}")));
        }
        // SAFETY: the driver has ended the name.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let arch = (major * 10 + minor) as u32;
        let context = Context { d, handle, ordinal: device, name, arch };
        if arch < 80 {
            let why = format!("GPU {ordinal} ({}) has compute capability {major}.{minor}", context.name);
            return Err(RuntimeError::new("E0817", why).help("Partita needs 8.0 or later (Ampere)"));
        }
        context.enter()?;
        Ok(Arc::new(context))
    }

    fn check(&self, code: u32, doing: &str) -> Result<(), RuntimeError> {
        if code == 0 { Ok(()) } else { Err(failed(self.d, code, doing)) }
    }

    /// Makes it the current device of this thread, which every thread does before it calls others.
    pub fn enter(&self) -> Result<(), RuntimeError> {
        // SAFETY: a handle of the driver.
        self.check(unsafe { (self.d.set_current)(self.handle) }, "choosing a device")
    }

    /// Bytes that are free, and of all.
    pub fn memory(&self) -> Result<(usize, usize), RuntimeError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: places to write to.
        self.check(unsafe { (self.d.memory_info)(&mut free, &mut total) }, "asking for memory")?;
        Ok((free, total))
    }

    /// Memory of the device; what it holds is not defined.
    pub fn room(self: &Arc<Self>, bytes: usize, what: &str) -> Result<Room, RuntimeError> {
        let mut at = 0;
        if bytes > 0 {
            // SAFETY: a place to write to.
            let code = unsafe { (self.d.allocate)(&mut at, bytes) };
            if code == OUT_OF_MEMORY {
                let (free, total) = self.memory().unwrap_or((0, 0));
                let why = format!("out of memory of {}: {bytes} bytes for {what}", self.name);
                return Err(RuntimeError::new("E0811", why)
                    .note(format!("{free} of its {total} bytes are free"))
                    .help("use a smaller batch or model, `precision bf16`, or more GPUs"));
            }
            self.check(code, "allocating memory")?;
        }
        Ok(Room { context: self.clone(), at, bytes })
    }

    pub fn stream(self: &Arc<Self>) -> Result<Stream, RuntimeError> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a place to write to. 1: it does not wait for the default stream.
        self.check(unsafe { (self.d.stream_new)(&mut handle, 1) }, "making a stream")?;
        Ok(Stream { context: self.clone(), handle })
    }

    pub fn event(self: &Arc<Self>) -> Result<Event, RuntimeError> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: a place to write to.
        self.check(unsafe { (self.d.event_new)(&mut handle, 0) }, "making an event")?;
        Ok(Event { context: self.clone(), handle })
    }

    /// Kernels of a PTX text, by their names in order.
    pub fn load(self: &Arc<Self>, ptx: &str, names: &[String]) -> Result<Loaded, RuntimeError> {
        let text = CString::new(ptx).map_err(|_| RuntimeError::internal("PTX with a zero"))?;
        let mut handle: Handle = std::ptr::null_mut();
        let none = std::ptr::null_mut::<c_uint>();
        // SAFETY: a string with its end, no options.
        let code = unsafe { (self.d.module_load)(&mut handle, text.as_ptr().cast(), 0, none, std::ptr::null_mut()) };
        if code != 0 {
            let why = format!("the driver ({}) does not take the kernels: {}", driver_version(), told(self.d, code));
            return Err(RuntimeError::new("E0817", why)
                .help("is the driver older than NVRTC? Update it, or install an older NVRTC"));
        }
        let mut loaded = Loaded { context: self.clone(), handle, functions: Vec::with_capacity(names.len()) };
        for name in names {
            let c = CString::new(name.as_str()).map_err(|_| RuntimeError::internal("a name with a zero"))?;
            let mut function: Handle = std::ptr::null_mut();
            // SAFETY: a loaded module and a string with its end.
            let code = unsafe { (self.d.function)(&mut function, handle, c.as_ptr()) };
            self.check(code, &format!("looking up kernel `{name}`"))?;
            loaded.functions.push(Function(function));
        }
        Ok(loaded)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once. What fails here concerns nobody any more.
        unsafe { (self.d.release)(self.ordinal) };
    }
}

/// Memory of a device.
pub struct Room {
    context: Arc<Context>,
    at: u64,
    bytes: usize,
}

impl Room {
    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.at != 0 && self.context.enter().is_ok() {
            // SAFETY: it was allocated once, and nobody has the address any more.
            unsafe { (self.context.d.free)(self.at) };
        }
    }
}

/// A kernel.
#[derive(Clone, Copy)]
pub struct Function(Handle);

// SAFETY: a handle of the driver.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Kernels in memory of a device.
pub struct Loaded {
    context: Arc<Context>,
    handle: Handle,
    pub functions: Vec<Function>,
}

// SAFETY: handles of the driver may be used on any thread.
unsafe impl Send for Loaded {}

impl Loaded {
    /// Lets a kernel use so much dynamic shared memory.
    pub fn allow(&self, n: usize, shared: u32) -> Result<(), RuntimeError> {
        if shared <= USUAL_SHARED {
            return Ok(());
        }
        // SAFETY: a function of this module.
        let code = unsafe { (self.context.d.function_set)(self.functions[n].0, SHARED, shared as c_int) };
        self.context.check(code, &format!("asking for {shared} bytes of shared memory"))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was loaded once.
            unsafe { (self.context.d.module_free)(self.handle) };
        }
    }
}

/// A list of work of a device, done in order.
pub struct Stream {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: handles of the driver may be used on any thread.
unsafe impl Send for Stream {}

/// How a kernel is launched.
pub struct Launch<'a> {
    pub function: Function,
    pub blocks: u32,
    pub threads: u32,
    pub shared: u32,
    /// All arguments are 64-bit.
    pub args: &'a [u64],
}

impl Stream {
    pub fn handle(&self) -> *mut c_void {
        self.handle
    }

    fn check(&self, code: u32, doing: &str) -> Result<(), RuntimeError> {
        self.context.check(code, doing)
    }

    /// Waits for all that was begun, and says whether it went well.
    pub fn wait(&self) -> Result<(), RuntimeError> {
        // SAFETY: a stream of this context.
        self.check(unsafe { (self.context.d.stream_sync)(self.handle) }, "waiting for a step")
    }

    /// Whether all is done.
    pub fn is_idle(&self) -> Result<bool, RuntimeError> {
        // SAFETY: a stream of this context.
        match unsafe { (self.context.d.stream_query)(self.handle) } {
            NOT_READY => Ok(false),
            code => self.check(code, "waiting for a step").map(|()| true),
        }
    }

    /// Copies bytes to the device, and waits until they are there.
    pub fn write(&self, to: u64, bytes: &[u8]) -> Result<(), RuntimeError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes live until the wait has ended; a bad address is found by the driver.
        let code = unsafe { (self.context.d.to_device)(to, bytes.as_ptr().cast(), bytes.len(), self.handle) };
        self.check(code, "copying to the device")?;
        self.wait()
    }

    /// Copies bytes from the device, when all before is done.
    pub fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: as for `write`.
        let code = unsafe { (self.context.d.to_host)(bytes.as_mut_ptr().cast(), from, bytes.len(), self.handle) };
        self.check(code, "copying from the device")?;
        self.wait()
    }

    pub fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), RuntimeError> {
        if bytes == 0 || from == to {
            return Ok(());
        }
        // SAFETY: addresses of the device, which the host does not read through.
        self.check(unsafe { (self.context.d.copy)(to, from, bytes, self.handle) }, "copying")
    }

    pub fn zero(&self, at: u64, bytes: usize) -> Result<(), RuntimeError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        self.check(unsafe { (self.context.d.set_bytes)(at, 0, bytes, self.handle) }, "clearing memory")
    }

    /// Sets one 32-bit word.
    pub fn set(&self, at: u64, value: u32) -> Result<(), RuntimeError> {
        // SAFETY: as above.
        self.check(unsafe { (self.context.d.set_words)(at, value, 1, self.handle) }, "setting a cell")
    }

    pub fn launch(&self, l: &Launch<'_>) -> Result<(), RuntimeError> {
        let mut args: Vec<*mut c_void> = l.args.iter().map(|a| std::ptr::from_ref(a).cast_mut().cast()).collect();
        // SAFETY: as many arguments as the kernel has, each of 64 bits; they are copied by the call.
        let code = unsafe {
            (self.context.d.launch)(
                l.function.0,
                l.blocks,
                1,
                1,
                l.threads,
                1,
                1,
                l.shared,
                self.handle,
                args.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.check(code, "launching a kernel")
    }

    /// Notes the place in the list that has come so far.
    pub fn record(&self, event: &Event) -> Result<(), RuntimeError> {
        // SAFETY: handles of this context.
        self.check(unsafe { (self.context.d.event_record)(event.handle, self.handle) }, "recording an event")
    }

    /// What comes from now on waits until another stream has come to a noted place.
    pub fn wait_for(&self, event: &Event) -> Result<(), RuntimeError> {
        // SAFETY: as above.
        self.check(unsafe { (self.context.d.stream_wait)(self.handle, event.handle, 0) }, "waiting for an event")
    }

    /// What `work` would do on this stream, as one graph.
    pub fn capture(&self, work: impl FnOnce() -> Result<(), RuntimeError>) -> Result<Graph, RuntimeError> {
        let d = self.context.d;
        // SAFETY: a stream of this context. 2: other threads may call what they like meanwhile.
        self.check(unsafe { (d.capture_begin)(self.handle, 2) }, "beginning a graph")?;
        let done = work();
        let mut graph: Handle = std::ptr::null_mut();
        // SAFETY: a place to write to.
        let ended = unsafe { (d.capture_end)(self.handle, &mut graph) };
        done?;
        self.check(ended, "ending a graph")?;
        let mut exec: Handle = std::ptr::null_mut();
        // SAFETY: a graph of this context, freed once it is instantiated.
        let made = unsafe { (d.graph_instantiate)(&mut exec, graph, 0) };
        // SAFETY: as above.
        unsafe { (d.graph_free)(graph) };
        self.check(made, "making a graph")?;
        Ok(Graph { context: self.context.clone(), handle: exec })
    }

    pub fn run(&self, graph: &Graph) -> Result<(), RuntimeError> {
        // SAFETY: handles of this context.
        self.check(unsafe { (self.context.d.graph_launch)(graph.handle, self.handle) }, "launching a graph")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was made once.
            unsafe { (self.context.d.stream_free)(self.handle) };
        }
    }
}

/// A place in a stream.
pub struct Event {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: handles of the driver may be used on any thread.
unsafe impl Send for Event {}

impl Event {
    /// Milliseconds from another one to this one, both done.
    pub fn since(&self, begin: &Event) -> Result<f32, RuntimeError> {
        let mut time = 0.0;
        // SAFETY: a place to write to, handles of this context.
        let code = unsafe { (self.context.d.event_elapsed)(&mut time, begin.handle, self.handle) };
        self.context.check(code, "measuring time").map(|()| time)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was made once.
            unsafe { (self.context.d.event_free)(self.handle) };
        }
    }
}

/// Work that is launched as a whole.
pub struct Graph {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: handles of the driver may be used on any thread.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was instantiated once.
            unsafe { (self.context.d.graph_exec_free)(self.handle) };
        }
    }
}
