//! What the launches of a kernel did.

/// Sums over the launches of one kernel. Bytes are of global memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub launches: u64,
    /// Instructions of warps.
    pub instructions: u64,
    /// Instructions of lanes.
    pub lane_instructions: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Bytes that a launch read or wrote at least once, each counted once for a launch.
    pub unique_read_bytes: u64,
    pub unique_written_bytes: u64,
    /// Loads and stores of global memory by warps, and the sectors of 32 bytes that they touched.
    pub global_accesses: u64,
    pub sectors: u64,
    /// Parts of shared-memory accesses that a device serves in one cycle each, were there no conflict of banks, and the
    /// cycles that they take with conflicts.
    pub shared_accesses: u64,
    pub shared_cycles: u64,
    pub nanoseconds: u64,
}

impl Counters {
    pub fn add(&mut self, o: &Counters) {
        self.launches += o.launches;
        self.instructions += o.instructions;
        self.lane_instructions += o.lane_instructions;
        self.read_bytes += o.read_bytes;
        self.written_bytes += o.written_bytes;
        self.unique_read_bytes += o.unique_read_bytes;
        self.unique_written_bytes += o.unique_written_bytes;
        self.global_accesses += o.global_accesses;
        self.sectors += o.sectors;
        self.shared_accesses += o.shared_accesses;
        self.shared_cycles += o.shared_cycles;
        self.nanoseconds += o.nanoseconds;
    }

    /// Names and values, in the order of a report.
    pub fn fields(&self) -> [(&'static str, u64); 12] {
        [
            ("launches", self.launches),
            ("instructions", self.instructions),
            ("lane_instructions", self.lane_instructions),
            ("read_bytes", self.read_bytes),
            ("written_bytes", self.written_bytes),
            ("unique_read_bytes", self.unique_read_bytes),
            ("unique_written_bytes", self.unique_written_bytes),
            ("global_accesses", self.global_accesses),
            ("sectors", self.sectors),
            ("shared_accesses", self.shared_accesses),
            ("shared_cycles", self.shared_cycles),
            ("nanoseconds", self.nanoseconds),
        ]
    }
}
