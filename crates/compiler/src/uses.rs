//! The readers and writers of buffers.

use hashbrown::HashMap;
use kiln_codegen::{BufId, Launch, Origin, Sequence};

/// The launches that read and write each buffer of a sequence.
pub(crate) struct Uses {
    /// For each buffer, the launches that read it, ascending.
    pub readers: Vec<Vec<usize>>,
    /// For each buffer, the launches that write it, ascending.
    pub writers: Vec<Vec<usize>>,
    /// The buffers of the graph's inputs.
    inputs: HashMap<u32, usize>,
}

impl Uses {
    pub fn new(sequence: &Sequence) -> Uses {
        let inputs = sequence.buffers.iter().enumerate();
        let inputs = inputs.filter_map(|(b, info)| match info.origin {
            Origin::Input(index) => Some((index, b)),
            _ => None,
        });
        let mut uses = Uses {
            readers: vec![Vec::new(); sequence.buffers.len()],
            writers: vec![Vec::new(); sequence.buffers.len()],
            inputs: inputs.collect(),
        };
        for (l, launch) in sequence.launches.iter().enumerate() {
            read(launch).for_each(|b| push_once(&mut uses.readers[ix(b)], l));
            written(launch).for_each(|b| push_once(&mut uses.writers[ix(b)], l));
        }
        uses
    }

    /// The buffer of an input, if anything reads it.
    pub fn input(&self, index: u32) -> Option<usize> {
        self.inputs.get(&index).copied()
    }
}

fn push_once(list: &mut Vec<usize>, launch: usize) {
    if list.last() != Some(&launch) {
        list.push(launch);
    }
}

fn args(launch: &Launch, written: bool) -> impl Iterator<Item = BufId> {
    let flagged = launch.args.iter().zip(&launch.written);
    flagged
        .filter(move |(_, w)| **w == written)
        .map(|(b, _)| *b)
}

/// The buffers that a launch writes.
pub(crate) fn written(launch: &Launch) -> impl Iterator<Item = BufId> {
    args(launch, true)
}

/// The buffers that a launch reads.
pub(crate) fn read(launch: &Launch) -> impl Iterator<Item = BufId> {
    args(launch, false)
}

pub(crate) fn ix(b: BufId) -> usize {
    b.0 as usize
}
