//! Linked programs.

use super::code::Instruction;
use super::emitted::{Emitted, OperandLocation};
use super::walk::{Shape, Walk};
use kiln_base::Compute;
use kiln_kernel::bound::BoundDynamic;
use kiln_plan::tile::{Schedule, SerialPoints};

/// The instructions of a stage.
pub(crate) struct Stage {
    pub over_inner: bool,
    /// The points of the serial axes at which it runs.
    pub serial_points: SerialPoints,
    /// The code before the first tile or step.
    pub begin: Vec<Instruction>,
    pub body: Vec<Instruction>,
    /// The code after the last tile or step.
    pub end: Vec<Instruction>,
    /// All walks of its loads and stores.
    pub walks: Vec<u32>,
    /// Walks whose base depends on the outer point.
    pub moving: Vec<u32>,
    /// Walks that need the coordinates of the tile's first lane.
    pub general: Vec<u32>,
    /// True if an emitted function runs over the steps.
    pub steps: bool,
    /// The lanes that it runs over at once: more than a tile if it keeps no values in the program's registers.
    pub step: usize,
}

/// A program linked for one CPU level.
pub(crate) struct Linked {
    pub schedule: Schedule,
    pub outer: Vec<i64>,
    pub outer_len: i64,
    pub lane_len: i64,
    /// The number of points of the parallel axes.
    pub points: i64,
    /// The number of consecutive points that one thread runs in order.
    pub serial: i64,
    /// The lanes of a full tile.
    pub tile: usize,
    /// The minimum of [`Stage::step`] over all stages.
    pub step: usize,
    /// The emitted functions.
    pub emitted: Vec<Emitted>,
    pub walks: Vec<Walk>,
    pub stages: Vec<Stage>,
    pub dynamics: Vec<Vec<BoundDynamic>>,
    pub constants: Vec<(u32, Compute, u64)>,
    /// The byte offsets of the registers in the frame.
    pub homes: Vec<usize>,
    /// The byte offsets of the row slots in the frame.
    pub slots: Vec<usize>,
    /// The bytes of the frame: registers and row slots.
    pub frame_bytes: usize,
    pub bases: usize,
    pub coords: usize,
    pub states: usize,
    /// True if some stores bypass the cache.
    pub streams: bool,
    /// The estimated nanoseconds per point of the parallel axes.
    pub cost: f64,
    /// The number of parts per thread; 0 if one thread does everything.
    pub parts: i64,
    /// True if parts may run concurrently.
    pub parallel: bool,
    /// True for each argument that is written completely, without being read before.
    pub covered: Vec<bool>,
    /// The bytes of the arguments that it was bound for.
    pub sizes: Vec<usize>,
    /// The bytes of an element of the last argument, if it is accessed only at the current point.
    pub in_place: Option<usize>,
    /// Programs that together are equivalent to this one and faster; empty if it is not split.
    pub pieces: Vec<Linked>,
}

impl Linked {
    /// Sets the lanes per step of all stages.
    pub(super) fn set_steps(&mut self) {
        let steps: Vec<usize> = self.stages.iter().map(|s| step_lanes(self, s)).collect();
        for (stage, step) in self.stages.iter_mut().zip(&steps) {
            stage.step = *step;
        }
        self.step = steps.into_iter().min().unwrap_or(self.tile);
    }

    /// True if the program writes its last argument, a part of a product, at the current point.
    pub(crate) fn is_written_in_place(&self, raw: usize) -> bool {
        let is_accessed = self.walks.iter().any(|w| w.reads_memory && w.arg == raw);
        (is_accessed || self.points == 0) && self.accesses_in_place(raw)
    }

    /// True if the program accesses its last argument, a part of a product, only at the current point.
    pub(crate) fn accesses_in_place(&self, raw: usize) -> bool {
        let mut walks = self.walks.iter().filter(|w| w.reads_memory && w.arg == raw);
        walks.all(|w| {
            // A row of one element, or an array of at most one, does not have the shape of a line.
            let (row, mut footprint) = match self.schedule {
                Schedule::Lanes => (self.points, 0), // there are no outer axes
                Schedule::Rows => (self.lane_len, self.lane_len),
            };
            let is_line = w.shape == Shape::Contiguous || row <= 1;
            let rows = w.address.outer.iter().zip(&self.outer).rev();
            let in_order = rows.fold(true, |in_order, (stride, extent)| {
                let next = *stride == footprint;
                footprint = footprint.saturating_mul(*extent);
                in_order && next
            });
            let is_empty = self.points == 0 || row == 0;
            is_empty
                || is_line && in_order && w.limits.is_empty() && w.address.offset == 0 && !w.dynamic
        })
    }
}

/// The lanes that emitted stages run over at once; a run can be cancelled between them.
const STEP: usize = 1 << 15;

/// Returns the number of lanes that a stage runs over at once: a tile, or more if all its instructions are calls that
/// keep no values per lane in registers.
fn step_lanes(program: &Linked, stage: &Stage) -> usize {
    let is_call = |c: &Instruction| c.is_call;
    let keeps_no_lanes = |c: &Instruction| {
        let operands = &program.emitted[c.x as usize].operands;
        operands.iter().all(|o| match o.location {
            OperandLocation::Register(_) => o.step == 0,
            OperandLocation::Transposed(..) => false,
            _ => true,
        })
    };
    let rows = program.schedule == Schedule::Rows;
    let is_uninterrupted = stage.over_inner == rows
        && !stage.body.is_empty()
        && stage.body.iter().all(|c| is_call(c) && keeps_no_lanes(c));
    if is_uninterrupted {
        STEP.max(program.tile)
    } else {
        program.tile
    }
}
