//! Executes programs on GPUs: one for each rank of the mesh, each on a thread of its own.
//!
//! A routine is made flat once (`list.rs`): its loops unrolled, its calls entered, the address of every buffer known. What
//! changes from run to run (step, position, keys of random streams) lies in cells and tables of the device that are written before. So a
//! run is a list of launches and copies, and from the second time on one graph where no other rank takes part.
//!
//! Reading order: this file, `memory.rs` (where buffers lie), `list.rs`, `rank.rs` (one device), `exchange.rs` and `moves.rs` (collectives
//! between devices).

mod exchange;
mod list;
mod memory;
mod moves;
mod rank;

use crate::program::Program;
use crate::runtime::RuntimeError;
use crate::runtime::device::cuda;
use crate::runtime::exec::{Array, FOLLOWS, Held, RunArgs, rank_name};
use crate::types::counted;
use rank::Rank;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All ranks of a program, each with a GPU.
pub struct Gpus {
    program: Arc<Program>,
    ranks: Vec<Mutex<Rank>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpus {
    /// On the devices that the program names.
    pub fn open(program: Arc<Program>) -> Result<Gpus, RuntimeError> {
        let count = program.mesh.ranks();
        let there = cuda::count()?;
        let named = program.gpu.as_ref().map_or(&[][..], |g| &g.devices);
        let devices: Vec<usize> = if named.is_empty() { (0..count).collect() } else { named.to_vec() };
        if devices.len() != count || devices.iter().any(|d| *d >= there) {
            let named = devices.iter().filter(|d| **d < there).count();
            let why = format!("the program has {count} ranks, each on a GPU of its own, of which there are {named}");
            return Err(RuntimeError::new("E0817", why)
                .note(format!("the driver has {there}, numbered from 0"))
                .help("make the mesh smaller, name other devices, or use `--device cpu`"));
        }
        let joining = exchange::Joining::new(&program)?;
        let made = on_threads(&devices, |rank, device| Rank::open(program.clone(), rank, *device, &joining));
        let ranks = made.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(Gpus { program, ranks: ranks.into_iter().map(Mutex::new).collect() })
    }

    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// How many devices there are, and what they are called.
    pub fn told(&self) -> String {
        let mut names: Vec<String> = self.ranks.iter().map(|r| lock(r).name().to_string()).collect();
        names.dedup();
        format!("{} ({})", counted(self.ranks.len(), "GPU"), names.join(", "))
    }

    /// Runs a routine once on all ranks. Of several errors that of the lowest rank counts which failed by itself.
    pub fn run(&mut self, routine: usize, args: RunArgs) -> Result<(), RuntimeError> {
        let results = on_threads(&self.ranks, |_, rank| lock(rank).run(routine, args));
        let many = results.len() > 1;
        let errors = results.into_iter().enumerate().filter_map(|(rank, r)| Some((rank, r.err()?)));
        let (follow, own): (Vec<_>, Vec<_>) = errors.partition(|(_, e)| e.code == FOLLOWS);
        match own.into_iter().chain(follow).next() {
            Some((rank, e)) if many => Err(e.note(format!("on {}", rank_name(&self.program, rank)))),
            Some((_, e)) => Err(e),
            None => Ok(()),
        }
    }

    /// Gives every rank its part of an array, row-major in the whole's shape.
    pub fn scatter(&mut self, array: Array, whole: &[u8]) -> Result<(), RuntimeError> {
        let slot = array.slot(&self.program);
        let (held, bytes) = (Held::of(&self.program, slot), slot.dtype.bytes());
        for (rank, at) in self.ranks.iter().enumerate().filter(|(r, _)| slot.is_at(self.program.stage(*r))) {
            let mut own = vec![0; slot.bytes()];
            held.take(rank, bytes, whole, &mut own);
            lock(at).write(array, &own)?;
        }
        Ok(())
    }

    /// Bytes of a whole array, row-major.
    pub fn gather(&self, array: Array, whole: &mut Vec<u8>) -> Result<(), RuntimeError> {
        let slot = array.slot(&self.program);
        let mut own = vec![0; slot.bytes()];
        let mut result = Ok(());
        Held::of(&self.program, slot).gather(slot.dtype.bytes(), whole, |rank, take| {
            if let Err(e) = lock(&self.ranks[rank]).read(array, &mut own) {
                result = Err(e);
            }
            take(&own);
        });
        result
    }

    /// Shape and bytes of an output of the routine that ran last, put together from what the ranks hold of it.
    pub fn output(&self, routine: usize, n: usize) -> Result<(Vec<usize>, Vec<u8>), RuntimeError> {
        let r = &self.program.routines[routine];
        let held = Held::of_output(&self.program, &r.outputs[n]);
        let dtype = r.buffer(r.outputs[n].buffer).dtype;
        let (mut whole, mut result) = (Vec::new(), Ok(()));
        held.gather(dtype.bytes(), &mut whole, |rank, take| match lock(&self.ranks[rank]).output(routine, n) {
            Ok(own) => take(&own),
            Err(e) => result = Err(e),
        });
        result.map(|()| (held.whole(), whole))
    }
}

/// Calls `f` for each, at the same time: of several each on a thread of its own.
fn on_threads<A: Sync, T: Send>(
    all: &[A],
    f: impl Fn(usize, &A) -> Result<T, RuntimeError> + Sync,
) -> Vec<Result<T, RuntimeError>> {
    if let [one] = all {
        return vec![f(0, one)];
    }
    std::thread::scope(|scope| {
        let f = &f;
        let threads: Vec<_> = all
            .iter()
            .enumerate()
            .map(|(n, a)| {
                std::thread::Builder::new().name(format!("partita-gpu-{n}")).spawn_scoped(scope, move || f(n, a))
            })
            .collect();
        let panicked = || RuntimeError::internal("the thread of a rank panicked");
        let join = |t: std::io::Result<std::thread::ScopedJoinHandle<'_, Result<T, RuntimeError>>>| match t {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err(panicked())),
            Err(e) => Err(crate::runtime::error::no_thread("rank", &e)),
        };
        threads.into_iter().map(join).collect()
    })
}
