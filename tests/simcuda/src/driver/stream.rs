//! Streams: work in order on a thread of its own, with events between streams. Work begins when it is handed over, or, if
//! the configuration says `late`, when something waits for it: whoever forgot to wait sees that.

use super::codes::{CAPTURE_UNSUPPORTED, Code};
use super::device::Device;
use super::graph::Tail;
use crate::check::fault::{Fault, Kind};
use crate::config::Config;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// Something that a stream does.
pub trait Work: Send + Sync {
    fn run(&self, device: &'static Device) -> Result<(), Fault>;

    /// Told when it stands in a queue, as the item with this number.
    fn queued(&self, _stream: &Arc<Stream>, _number: u64) {}
}

impl<F: Fn(&'static Device) -> Result<(), Fault> + Send + Sync> Work for F {
    fn run(&self, device: &'static Device) -> Result<(), Fault> {
        self(device)
    }
}

/// A place in a stream that others wait for.
pub struct Mark {
    stream: Arc<Stream>,
    number: u64,
    done: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Mark {
    pub fn done(&self) -> Option<Instant> {
        *self.done.lock().expect("no panic holds it")
    }

    /// Lets the stream run up to here.
    pub fn demand(&self) {
        self.stream.demand(self.number);
    }

    pub fn wait(&self) -> Instant {
        self.demand();
        let mut done = self.done.lock().expect("no panic holds it");
        loop {
            if let Some(at) = *done {
                return at;
            }
            done = self.changed.wait(done).expect("no panic holds it");
        }
    }

    fn finish(&self) {
        *self.done.lock().expect("no panic holds it") = Some(Instant::now());
        self.changed.notify_all();
    }
}

#[derive(Clone)]
pub enum Item {
    Run(Arc<dyn Work>),
    Record(Arc<Mark>),
    Wait(Arc<Mark>),
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    enqueued: u64,
    finished: u64,
    /// Items up to this number may run.
    released: u64,
    worker: bool,
    closing: bool,
    capture: Option<Tail>,
}

pub struct Stream {
    pub device: &'static Device,
    /// Whether it waits for the legacy stream and the legacy stream for it.
    pub blocking: bool,
    queue: Mutex<Queue>,
    /// There is something to run.
    arrived: Condvar,
    /// Something was finished.
    advanced: Condvar,
}

impl Stream {
    pub fn new(device: &'static Device, blocking: bool) -> Arc<Stream> {
        Arc::new(Stream {
            device,
            blocking,
            queue: Mutex::default(),
            arrived: Condvar::new(),
            advanced: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn is_legacy(self: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, self.device.legacy())
    }

    /// Hands work over, or notes it in the graph that the stream is captured into.
    pub fn push(self: &Arc<Self>, work: Arc<dyn Work>) -> Result<(), Code> {
        self.device.check()?;
        if let Some(tail) = &mut self.lock().capture {
            return tail.add(work);
        }
        self.after_others()?;
        let number = self.put(Item::Run(work.clone()));
        work.queued(self, number);
        Ok(())
    }

    /// The legacy stream and the blocking ones wait for each other.
    fn after_others(self: &Arc<Self>) -> Result<(), Code> {
        if !self.blocking {
            return Ok(());
        }
        if self.is_legacy() {
            for other in self.device.streams() {
                if other.blocking && !Arc::ptr_eq(&other, self) {
                    if other.capturing() {
                        return Err(super::codes::CAPTURE_IMPLICIT);
                    }
                    other.join(self);
                }
            }
        } else {
            let legacy = self.device.legacy();
            legacy.clone().join(self);
        }
        Ok(())
    }

    /// Makes `later` wait for what this stream has now.
    fn join(self: &Arc<Self>, later: &Arc<Stream>) {
        let idle = {
            let queue = self.lock();
            queue.enqueued == queue.finished
        };
        if !idle {
            let mark = self.mark();
            later.put(Item::Wait(mark));
        }
    }

    /// A mark after what has been handed over.
    pub fn mark(self: &Arc<Self>) -> Arc<Mark> {
        let mut queue = self.lock();
        let number = queue.enqueued + 1;
        let mark = Arc::new(Mark { stream: self.clone(), number, done: Mutex::new(None), changed: Condvar::new() });
        self.put_locked(&mut queue, Item::Record(mark.clone()));
        mark
    }

    pub fn wait_for(self: &Arc<Self>, mark: Arc<Mark>) {
        self.put(Item::Wait(mark));
    }

    fn put(self: &Arc<Self>, item: Item) -> u64 {
        let mut queue = self.lock();
        self.put_locked(&mut queue, item)
    }

    fn put_locked(self: &Arc<Self>, queue: &mut Queue, item: Item) -> u64 {
        queue.items.push_back(item);
        queue.enqueued += 1;
        if !Config::get().late {
            queue.released = queue.enqueued;
        }
        if !queue.worker {
            queue.worker = true;
            let stream = self.clone();
            let name = format!("gpu{} stream", self.device.index);
            // A host that gives no thread cannot run the program in any way.
            std::thread::Builder::new().name(name).spawn(move || stream.work()).expect("a thread can be started");
        }
        self.arrived.notify_all();
        queue.enqueued
    }

    /// Lets the stream run up to an item.
    pub fn demand(&self, number: u64) {
        let mut queue = self.lock();
        if queue.released < number {
            queue.released = number;
            self.arrived.notify_all();
        }
    }

    /// Waits for all that has been handed over.
    pub fn synchronise(&self) -> Result<(), Code> {
        let mut queue = self.lock();
        if queue.capture.is_some() {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let last = queue.enqueued;
        queue.released = queue.released.max(last);
        self.arrived.notify_all();
        while queue.finished < last {
            queue = self.advanced.wait(queue).unwrap_or_else(|p| p.into_inner());
        }
        drop(queue);
        self.device.check()
    }

    /// Whether nothing is left to do. Asking lets the work begin.
    pub fn idle(&self) -> bool {
        let mut queue = self.lock();
        queue.released = queue.enqueued;
        self.arrived.notify_all();
        queue.finished == queue.enqueued
    }

    /// No more will come; what is there still runs.
    pub fn close(&self) {
        let mut queue = self.lock();
        queue.closing = true;
        queue.released = queue.enqueued;
        self.arrived.notify_all();
    }

    pub fn capturing(&self) -> bool {
        self.lock().capture.is_some()
    }

    pub fn with_capture<R>(&self, f: impl FnOnce(&mut Option<Tail>) -> R) -> R {
        f(&mut self.lock().capture)
    }

    fn work(self: Arc<Self>) {
        loop {
            let item = {
                let mut queue = self.lock();
                loop {
                    if queue.finished < queue.released && !queue.items.is_empty() {
                        break queue.items.pop_front().expect("there is an item");
                    }
                    if queue.closing && queue.items.is_empty() {
                        queue.worker = false;
                        return;
                    }
                    queue = self.arrived.wait(queue).unwrap_or_else(|p| p.into_inner());
                }
            };
            match item {
                // What follows a fault is not run, only ended.
                Item::Run(work) => {
                    if self.device.check().is_ok() {
                        // A mistake of the software GPU itself must not leave others waiting for this thread.
                        let device = self.device;
                        let ran = catch_unwind(AssertUnwindSafe(|| work.run(device))).unwrap_or_else(|_| {
                            let message = String::from("the software GPU has panicked");
                            Err(Fault { kind: Kind::Invalid, place: None, message })
                        });
                        if let Err(fault) = ran {
                            device.fail(&fault);
                        }
                    }
                }
                Item::Record(mark) => mark.finish(),
                Item::Wait(mark) => {
                    mark.wait();
                }
            }
            self.lock().finished += 1;
            self.advanced.notify_all();
        }
    }
}

/// What a program records and waits for.
#[derive(Default)]
pub struct Event {
    pub mark: Mutex<Option<Arc<Mark>>>,
    /// Where it was last recorded, if that was in a capture.
    pub captured: Mutex<Option<Tail>>,
}
