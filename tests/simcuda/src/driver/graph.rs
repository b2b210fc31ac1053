//! Graphs: what streams would have done, noted while they are captured, and done again at each launch.

use super::codes::{
    CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_UNJOINED, CAPTURE_UNMATCHED, CAPTURED_EVENT, Code, INVALID_HANDLE,
    INVALID_VALUE,
};
use super::stream::{Event, Stream, Work};
use crate::config::Config;
use std::cell::RefCell;
use std::sync::{Arc, Mutex};

struct Node {
    work: Arc<dyn Work>,
    after: Vec<usize>,
}

/// A capture that several streams may take part in.
#[derive(Default)]
pub struct Capture {
    nodes: Mutex<Vec<Node>>,
    invalid: Mutex<bool>,
    /// Streams that take part, the one that began it first.
    streams: Mutex<Vec<Arc<Stream>>>,
}

/// Where a stream (or an event) is in a capture: what its next work comes after.
#[derive(Clone)]
pub struct Tail {
    pub capture: Arc<Capture>,
    after: Vec<usize>,
}

impl Tail {
    pub fn add(&mut self, work: Arc<dyn Work>) -> Result<(), Code> {
        if *self.capture.invalid.lock().expect("no panic holds it") {
            return Err(CAPTURE_INVALIDATED);
        }
        let mut nodes = self.capture.nodes.lock().expect("no panic holds it");
        nodes.push(Node { work, after: std::mem::take(&mut self.after) });
        self.after = vec![nodes.len() - 1];
        Ok(())
    }
}

thread_local! {
    /// Captures that this thread has begun and that forbid it calls which wait.
    static STRICT: RefCell<Vec<Arc<Capture>>> = const { RefCell::new(Vec::new()) };
}

/// Fails where a thread that captures calls what a capture cannot hold; the capture is of no use then.
pub fn forbid() -> Result<(), Code> {
    STRICT.with_borrow(|list| match list.last() {
        None => Ok(()),
        Some(capture) => {
            *capture.invalid.lock().expect("no panic holds it") = true;
            Err(super::codes::CAPTURE_UNSUPPORTED)
        }
    })
}

/// `relaxed`: the thread may go on calling what waits.
pub fn begin(stream: &Arc<Stream>, relaxed: bool) -> Result<(), Code> {
    if Arc::ptr_eq(stream, stream.device.legacy()) {
        return Err(super::codes::CAPTURE_UNSUPPORTED);
    }
    let capture = Arc::new(Capture::default());
    let begun = stream.with_capture(|c| {
        if c.is_some() {
            return Err(INVALID_VALUE);
        }
        *c = Some(Tail { capture: capture.clone(), after: Vec::new() });
        Ok(())
    });
    begun?;
    capture.streams.lock().expect("no panic holds it").push(stream.clone());
    if !relaxed {
        STRICT.with_borrow_mut(|list| list.push(capture));
    }
    Ok(())
}

/// Records an event, in the capture where the stream is captured.
pub fn record(event: &Event, stream: &Arc<Stream>) {
    let tail = stream.with_capture(|c| c.clone());
    let captured = tail.is_some();
    *event.captured.lock().expect("no panic holds it") = tail;
    if !captured {
        *event.mark.lock().expect("no panic holds it") = Some(stream.mark());
    }
}

/// Makes a stream wait for an event.
pub fn wait(stream: &Arc<Stream>, event: &Event) -> Result<(), Code> {
    let from = event.captured.lock().expect("no panic holds it").clone();
    let Some(from) = from else {
        if stream.capturing() {
            stream.with_capture(|c| {
                if let Some(tail) = c {
                    *tail.capture.invalid.lock().expect("no panic holds it") = true;
                }
            });
            return Err(CAPTURE_ISOLATION);
        }
        if let Some(mark) = event.mark.lock().expect("no panic holds it").clone() {
            stream.wait_for(mark);
        }
        return Ok(());
    };
    let joined = stream.with_capture(|c| match c {
        Some(tail) if Arc::ptr_eq(&tail.capture, &from.capture) => {
            tail.after.extend(&from.after);
            Ok(false)
        }
        Some(_) => Err(super::codes::CAPTURE_UNSUPPORTED),
        None => {
            *c = Some(from.clone());
            Ok(true)
        }
    })?;
    if joined {
        from.capture.streams.lock().expect("no panic holds it").push(stream.clone());
    }
    Ok(())
}

/// The event's mark; an error where it was recorded in a capture.
pub fn mark_of(event: &Event) -> Result<Option<Arc<super::stream::Mark>>, Code> {
    if event.captured.lock().expect("no panic holds it").is_some() {
        return Err(CAPTURED_EVENT);
    }
    Ok(event.mark.lock().expect("no panic holds it").clone())
}

/// Work in an order in which it may run.
pub struct Graph {
    pub order: Vec<Arc<dyn Work>>,
}

pub fn end(stream: &Arc<Stream>) -> Result<Graph, Code> {
    let tail = stream.with_capture(|c| c.clone()).ok_or(INVALID_VALUE)?;
    let capture = tail.capture.clone();
    let streams = std::mem::take(&mut *capture.streams.lock().expect("no panic holds it"));
    if !streams.first().is_some_and(|s| Arc::ptr_eq(s, stream)) {
        *capture.streams.lock().expect("no panic holds it") = streams;
        return Err(CAPTURE_UNMATCHED);
    }
    let tails: Vec<Tail> = streams.iter().filter_map(|s| s.with_capture(|c| c.take())).collect();
    STRICT.with_borrow_mut(|list| list.retain(|c| !Arc::ptr_eq(c, &capture)));
    if *capture.invalid.lock().expect("no panic holds it") {
        return Err(CAPTURE_INVALIDATED);
    }
    let nodes = capture.nodes.lock().expect("no panic holds it");
    // What the end of the first stream comes after, itself included.
    let mut reached = vec![false; nodes.len()];
    let mut late = Vec::new();
    for last in &tail.after {
        visit(&nodes, *last, &mut reached, &mut late);
    }
    if tails.iter().flat_map(|t| &t.after).any(|n| !reached[*n]) {
        return Err(CAPTURE_UNJOINED);
    }
    let order: Vec<usize> = if Config::get().late { late } else { (0..nodes.len()).collect() };
    Ok(Graph { order: order.into_iter().map(|i| nodes[i].work.clone()).collect() })
}

/// What a node needs, the last named first, then the node: an order that keeps to the dependencies and to nothing else.
fn visit(nodes: &[Node], at: usize, reached: &mut [bool], order: &mut Vec<usize>) {
    // Without recursion: graphs of whole training steps are deep.
    let mut open = vec![(at, 0usize)];
    if std::mem::replace(&mut reached[at], true) {
        return;
    }
    while let Some((node, next)) = open.pop() {
        let after = &nodes[node].after;
        match after.len().checked_sub(next + 1).map(|i| after[i]) {
            Some(before) => {
                open.push((node, next + 1));
                if !std::mem::replace(&mut reached[before], true) {
                    open.push((before, 0));
                }
            }
            None => order.push(node),
        }
    }
}

pub fn launch(graph: &Graph, stream: &Arc<Stream>) -> Result<(), Code> {
    if stream.capturing() {
        return Err(INVALID_HANDLE);
    }
    for work in &graph.order {
        stream.push(work.clone())?;
    }
    Ok(())
}
