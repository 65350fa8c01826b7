//! In which order the instructions of a stage run where some of them are printed: those that are interpreted and
//! those that are printed in turns, as few as there can be.

use super::inst::operands;
use hashbrown::{HashMap, HashSet};
use kiln_plan::tile::Inst;

/// Where a register that is read has its value from.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Name {
    /// The instruction of the stage that wrote it.
    Made(usize),
    /// Before the stage, or a constant.
    Before(u16),
}

/// Instructions that run together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub printed: bool,
    /// By position in the stage.
    pub code: Vec<usize>,
}

/// What each instruction of a stage reads.
pub(super) fn names(code: &[Inst]) -> Vec<Vec<Name>> {
    let mut made: HashMap<u16, usize> = HashMap::new();
    let mut names = Vec::with_capacity(code.len());
    for (i, inst) in code.iter().enumerate() {
        let (reads, writes) = operands(inst);
        let name = |r: u16| made.get(&r).map_or(Name::Before(r), |i| Name::Made(*i));
        names.push(reads.iter().map(|r| name(r.0)).collect());
        if let Some(r) = writes {
            made.insert(r.0, i);
        }
    }
    names
}

/// What an instruction must run after, beside what makes its operands.
///
/// Stores, and loads, from before a store stay before it, since arguments may be one memory; so do uses of a row slot
/// and of a register that is more than a name.
fn order(code: &[Inst], fixed: &HashSet<u16>) -> Vec<Vec<usize>> {
    #[derive(Default)]
    struct Place {
        written: Option<usize>,
        read: Vec<usize>,
    }
    impl Place {
        fn read(&mut self, at: usize, after: &mut Vec<usize>) {
            after.extend(self.written);
            self.read.push(at);
        }
        fn write(&mut self, at: usize, after: &mut Vec<usize>) {
            after.extend(self.written.replace(at));
            after.append(&mut self.read);
        }
    }
    let mut memory = Place::default();
    let mut slots: HashMap<u16, Place> = HashMap::new();
    let mut registers: HashMap<u16, Place> = HashMap::new();
    let mut all = Vec::with_capacity(code.len());
    for (i, inst) in code.iter().enumerate() {
        let mut after = vec![];
        match inst {
            Inst::Load { .. } | Inst::LoadAt { .. } => memory.read(i, &mut after),
            Inst::Store { .. } => memory.write(i, &mut after),
            Inst::Keep { slot, .. } => slots.entry(*slot).or_default().write(i, &mut after),
            Inst::Kept { slot, .. } => slots.entry(*slot).or_default().read(i, &mut after),
            _ => {}
        }
        let (reads, writes) = operands(inst);
        for r in reads.iter().filter(|r| fixed.contains(&r.0)) {
            registers.entry(r.0).or_default().read(i, &mut after);
        }
        if let Some(r) = writes.filter(|r| fixed.contains(&r.0)) {
            registers.entry(r.0).or_default().write(i, &mut after);
        }
        all.push(after);
    }
    all
}

/// The rounds of a stage, given which of its instructions are printed.
pub(super) fn rounds(code: &[Inst], fixed: &HashSet<u16>, printed: &[bool]) -> Vec<Round> {
    let mut after = order(code, fixed);
    for (after, names) in after.iter_mut().zip(names(code)) {
        after.extend(names.iter().filter_map(|n| match n {
            Name::Made(i) => Some(*i),
            Name::Before(_) => None,
        }));
    }
    let mut done = vec![false; code.len()];
    let mut rounds: Vec<Round> = vec![];
    let mut left: Vec<usize> = (0..code.len()).collect();
    let mut turn = false;
    while !left.is_empty() {
        let mut now = vec![];
        left.retain(|i| {
            let ready = printed[*i] == turn && after[*i].iter().all(|a| done[*a]);
            if ready {
                done[*i] = true;
                now.push(*i);
            }
            !ready
        });
        if !now.is_empty() {
            rounds.push(Round {
                printed: turn,
                code: now,
            });
        }
        turn = !turn;
    }
    rounds
}
