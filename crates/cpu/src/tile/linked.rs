//! A program as code.

use super::call::Printed;
use super::code::Code;
use super::walk::{Shape, Walk};
use crate::tile::{Launch, run_all};
use kiln_base::Compute;
use kiln_kernel::bound::BoundDynamic;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failure;
use kiln_kernel::work::{Call, Program, Work};
use kiln_plan::tile::{Schedule, Turn};
use std::any::Any;

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

impl Work for Linked {
    unsafe fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        let (args, parallel) = (call.args, call.parallel);
        let program = self;
        let launch = Launch {
            program,
            args,
            parallel,
        };
        // SAFETY: the program was bound for arguments of these lengths, within which it was proven to stay.
        unsafe { run_all(&[launch], call.failures) };
        Ok(None)
    }

    fn schedule(&self) -> Option<String> {
        if !self.pieces.is_empty() {
            return Some(format!("in {} pieces", self.pieces.len()));
        }
        let codes = |s: &'_ Stage| -> Vec<Code> {
            [&s.begin, &s.body, &s.end]
                .into_iter()
                .flatten()
                .copied()
                .collect()
        };
        let loops = self.stages.iter().flat_map(codes);
        let (printed, interpreted): (Vec<Code>, Vec<Code>) = loops.partition(|c| c.is_call);
        let count = |n: usize, what: &str| match n {
            0 => None,
            1 => Some(format!("1 {what} loop")),
            n => Some(format!("{n} {what} loops")),
        };
        let all = [
            count(printed.len(), "printed"),
            count(interpreted.len(), "interpreted"),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn program(&self) -> Option<&dyn Program> {
        Some(self)
    }
}

impl Linked {
    /// Finds how many lanes stages run over at once.
    pub(super) fn set_steps(&mut self) {
        #[cfg(all(target_arch = "x86_64", unix))]
        let steps: Vec<usize> = (self.stages.iter())
            .map(|s| super::print::step(self, s))
            .collect();
        #[cfg(not(all(target_arch = "x86_64", unix)))]
        let steps = vec![self.tile; self.stages.len()];
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

impl Program for Linked {
    fn is_parallel(&self) -> bool {
        self.parallel
    }

    fn keeps_apart(&self, args: &[usize]) -> bool {
        let walks = self.walks.iter();
        let walks: Vec<&Walk> = walks
            .filter(|w| w.reads_memory && args.contains(&w.arg))
            .collect();
        let clear = |(i, w): (usize, &&Walk)| walks[..i].iter().all(|v| w.keeps_clear_of(v));
        walks.iter().enumerate().all(clear)
    }

    fn covers(&self, arg: usize) -> bool {
        self.covered.get(arg) == Some(&true)
    }
}
