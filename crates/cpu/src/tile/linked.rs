//! A program as code.

use super::code::Code;
use super::emitted::{Place, Printed};
use super::walk::{Shape, Walk};
use kiln_base::Compute;
use kiln_kernel::bound::BoundDynamic;
use kiln_plan::tile::{Schedule, Turn};

/// A stage as code.
pub(crate) struct Stage {
    pub over_inner: bool,
    /// For which points of the serial axes it runs.
    pub turn: Turn,
    /// Before the first tile or step.
    pub begin: Vec<Code>,
    pub body: Vec<Code>,
    /// After the last.
    pub end: Vec<Code>,
    /// Every walk of its loads and stores.
    pub walks: Vec<u32>,
    /// Walks whose base depends on the outer point.
    pub moving: Vec<u32>,
    /// Walks that need the coordinates of the tile's first lane.
    pub general: Vec<u32>,
    /// Whether a printed function runs over the steps.
    pub steps: bool,
    /// Lanes that it runs over at once: more than a tile where nothing of it is kept in registers of the program.
    pub step: usize,
}

/// A program as code for one CPU level.
pub(crate) struct Linked {
    pub schedule: Schedule,
    pub outer: Vec<i64>,
    pub outer_len: i64,
    pub lane_len: i64,
    /// Points of the parallel axes.
    pub points: i64,
    /// How many of these one thread runs in order.
    pub serial: i64,
    /// Lanes of a full tile.
    pub tile: usize,
    /// Lanes that all stages run over at once, of tiles of the parallel axes: as a stage's.
    pub step: usize,
    /// Functions that are machine code.
    pub printed: Vec<Printed>,
    pub walks: Vec<Walk>,
    pub stages: Vec<Stage>,
    pub dynamics: Vec<Vec<BoundDynamic>>,
    pub constants: Vec<(u32, Compute, u64)>,
    /// Byte offsets of the registers in the frame.
    pub homes: Vec<usize>,
    /// Byte offsets of the row slots in the frame.
    pub slots: Vec<usize>,
    /// Bytes of the frame.
    pub frame: usize,
    pub bases: usize,
    pub coords: usize,
    pub states: usize,
    /// Whether some stores bypass the cache.
    pub streams: bool,
    /// Estimated nanoseconds a point of the parallel axes.
    pub cost: f64,
    /// Parts of each thread; 0 if one does everything.
    pub parts: i64,
    /// Whether parts may run at the same time.
    pub parallel: bool,
    /// For each argument, whether all of it is written, and nothing of it read before.
    pub covered: Vec<bool>,
    /// Programs that together are this one and take less time, if there are any.
    pub pieces: Vec<Linked>,
}

impl Linked {
    /// Finds how many lanes stages run over at once.
    pub(super) fn set_steps(&mut self) {
        let steps: Vec<usize> = self.stages.iter().map(|s| step(self, s)).collect();
        for (stage, step) in self.stages.iter_mut().zip(&steps) {
            stage.step = *step;
        }
        self.step = steps.into_iter().min().unwrap_or(self.tile);
    }

    /// Whether the program writes its last argument, a part of a product, at the place it is at.
    pub(crate) fn is_written_in_place(&self, raw: usize) -> bool {
        let touched = self.walks.iter().any(|w| w.reads_memory && w.arg == raw);
        (touched || self.points == 0) && self.reads_in_place(raw)
    }

    /// Whether the program touches its last argument, a part of a product, only at the place it is at.
    pub(crate) fn reads_in_place(&self, raw: usize) -> bool {
        let mut walks = self.walks.iter().filter(|w| w.reads_memory && w.arg == raw);
        walks.all(|w| {
            // A row of one element, or an array of none or one, is no line.
            let (row, mut reach) = match self.schedule {
                Schedule::Lanes => (self.points, 0), // there are no outer axes
                Schedule::Rows => (self.lane_len, self.lane_len),
            };
            let line = w.shape == Shape::Contiguous || row <= 1;
            let rows = w.address.outer.iter().zip(&self.outer).rev();
            let in_order = rows.fold(true, |in_order, (stride, extent)| {
                let next = *stride == reach;
                reach *= extent;
                in_order && next
            });
            let nothing = self.points * row == 0;
            nothing
                || line && in_order && w.limits.is_empty() && w.address.offset == 0 && !w.dynamic
        })
    }
}

/// Lanes that printed stages run over at once; between them a run may be ended early.
const STEP: usize = 1 << 15;

/// How many lanes a stage runs over at once.
fn step(program: &Linked, stage: &Stage) -> usize {
    let is_call = |c: &Code| c.is_call;
    let whole = |c: &Code| {
        let operands = &program.printed[c.x as usize].operands;
        operands.iter().all(|o| match o.place {
            Place::Register(_) => o.step == 0,
            Place::Turned(..) => false,
            _ => true,
        })
    };
    let rows = program.schedule == Schedule::Rows;
    let long = stage.over_inner == rows
        && !stage.body.is_empty()
        && stage.body.iter().all(|c| is_call(c) && whole(c));
    if long {
        STEP.max(program.tile)
    } else {
        program.tile
    }
}
