//! The phases in which *prepare* runs on the CPU. Memory is allocated when a phase first needs it, and freed after its
//! last reader. So weights that are computed and then packed need not exist all at once.

use super::bound::Bound;
use super::loc::Loc;
use super::step::BoundStep;
use hashbrown::HashSet;
use kiln_kernel::memory::ALIGN;
use kiln_plan::memory::{Lifetime, solve};
use std::ops::Range;

/// Concurrent steps, and the memory that is first or last used by them.
pub(super) struct PreparePhase {
    pub steps: Range<usize>,
    /// Results of *prepare* that no earlier phase touched.
    pub begins: Vec<usize>,
    /// Inputs that neither later phases nor runs read.
    pub ends: Vec<usize>,
}

/// The schedule of *prepare*.
#[derive(Default)]
pub(super) struct PreparePhases {
    pub list: Vec<PreparePhase>,
    /// For each result that runs do not touch, its offset in memory that all of these share.
    pub spare: Vec<Option<usize>>,
    pub spare_bytes: usize,
}

impl PreparePhases {
    /// Returns the phases of a bound plan whose runs touch these locations.
    pub fn new(bound: &Bound, touched: &HashSet<Loc>) -> PreparePhases {
        let mut end_of_group = 0;
        let groups = bound.prepare.chunk_by(|_, next| next.concurrent);
        let groups: Vec<Range<usize>> = groups
            .map(|group| {
                end_of_group += group.len();
                end_of_group - group.len()..end_of_group
            })
            .collect();
        let mut first = vec![None; bound.prepared.len()];
        let mut last = vec![0; bound.prepared.len()];
        let mut inputs: Vec<(usize, usize)> = Vec::new();
        for (phase, steps) in groups.iter().enumerate() {
            for loc in bound.prepare[steps.clone()]
                .iter()
                .flat_map(BoundStep::locs)
            {
                match loc {
                    Loc::Prepared(p) => {
                        first[p].get_or_insert(phase);
                        last[p] = phase;
                    }
                    Loc::Input(i) => match inputs.iter_mut().find(|(input, _)| *input == i) {
                        Some((_, last)) => *last = phase,
                        None => inputs.push((i, phase)),
                    },
                    Loc::Slot(_) | Loc::Constant(_) | Loc::Arena(_) => {}
                }
            }
        }
        let transient = |p: &usize| !touched.contains(&Loc::Prepared(*p));
        let mut transient: Vec<usize> = (0..bound.prepared.len()).filter(transient).collect();
        let total = transient.iter().try_fold(0usize, |bytes, p| {
            bytes.checked_add(bound.prepared[*p])?.checked_add(ALIGN)
        });
        if total.is_none() {
            transient.clear(); // there is no such memory, shared or not
        }
        let block = |p: &usize| Lifetime {
            size: bound.prepared[*p],
            first: first[*p].unwrap_or(0),
            last: last[*p],
        };
        let layout = solve(&transient.iter().map(block).collect::<Vec<_>>());
        let mut spare = vec![None; bound.prepared.len()];
        for (p, offset) in transient.iter().zip(&layout.offsets) {
            spare[*p] = Some(*offset);
        }
        let phase = |(phase, steps): (usize, &Range<usize>)| {
            let begins = first.iter().enumerate();
            let begins = begins.filter(|(_, first)| **first == Some(phase));
            let ends = inputs
                .iter()
                .filter(|(input, last)| *last == phase && !touched.contains(&Loc::Input(*input)));
            PreparePhase {
                steps: steps.clone(),
                begins: begins.map(|(p, _)| p).collect(),
                ends: ends.map(|(input, _)| *input).collect(),
            }
        };
        PreparePhases {
            list: groups.iter().enumerate().map(phase).collect(),
            spare,
            spare_bytes: layout.peak,
        }
    }
}
