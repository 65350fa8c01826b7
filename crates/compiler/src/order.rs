//! The order of launches: once in *prepare*, in every run, or after everything that can fail.

use crate::guard::Guards;
use crate::join::{Joiner, can_join};
use crate::uses::{Uses, ix, read, written};
use hashbrown::HashMap;
use kiln_codegen::{BufId, Launch, Sequence};
use kiln_ir::{Graph, Target};
use kiln_plan::Kernel;

/// The launches of each part, in order.
pub(crate) struct Order {
    pub prepare: Vec<usize>,
    pub run: Vec<usize>,
    /// The launches that were moved after the others to write into donated inputs.
    pub commit: Vec<usize>,
    /// The first step of `run` and `commit` that may write into a donated input.
    pub commit_from: usize,
}

/// An output that is assigned to a cell.
struct Wish {
    input: u32,
    /// The buffer of the input.
    source: usize,
    /// The buffer of the output, and the launch that writes it.
    target: usize,
    launch: usize,
}

/// Decides which launches may write over an input.
struct Donation<'a> {
    sequence: &'a Sequence,
    uses: &'a Uses,
    /// For each launch, its position in the run.
    position: Vec<Option<usize>>,
    /// The step of the run after which nothing can fail.
    safe: usize,
}

impl Order {
    pub fn new(sequence: &Sequence) -> Order {
        // A value that the caller gets is written in every run, even if it depends on parameters alone: the caller
        // owns it afterwards.
        let mut prepared = vec![false; sequence.launches.len()];
        let mut is_output = vec![false; sequence.buffers.len()];
        for b in sequence.outputs.iter().flatten() {
            is_output[ix(*b)] = true;
        }
        for (l, launch) in sequence.launches.iter().enumerate() {
            prepared[l] = written(launch)
                .all(|b| sequence.buffers[ix(b)].parameter_only && !is_output[ix(b)]);
        }
        // A step may only be prepared if everything that it reads is prepared.
        let mut run_writes = vec![false; sequence.buffers.len()];
        for (l, launch) in sequence.launches.iter().enumerate() {
            prepared[l] &= read(launch).all(|b| !run_writes[ix(b)]);
            if !prepared[l] {
                written(launch).for_each(|b| run_writes[ix(b)] = true);
            }
        }
        let (prepare, run) = (0..sequence.launches.len()).partition(|l| prepared[*l]);
        Order {
            prepare,
            commit_from: run.len(),
            run,
            commit: Vec::new(),
        }
    }

    /// Groups the launches of the run and the commit that start together.
    pub fn join(
        &self,
        graph: &Graph,
        sequence: &Sequence,
        uses: &Uses,
        donors: &[Option<u32>],
        max_distance: usize,
        is_joinable: fn(&Sequence, &Launch) -> bool,
    ) -> Vec<Vec<usize>> {
        let guards = Guards::new(graph, sequence, uses, donors);
        let donors = donors.iter().map(|d| d.and_then(|d| uses.input(d)));
        let joiner = Joiner::new(graph, sequence, donors, &guards, max_distance, is_joinable);
        let launches: Vec<usize> = self.run.iter().chain(&self.commit).copied().collect();
        let (run, commit) = launches.split_at(self.commit_from);
        [joiner.groups(run), joiner.groups(commit)].concat()
    }

    /// Moves the launches of donated outputs to the end, unless their position is safe. Returns each output's donor.
    pub fn donate(&mut self, graph: &Graph, sequence: &Sequence, uses: &Uses) -> Vec<Option<u32>> {
        let donation = Donation::new(self, sequence, uses);
        let wishes: Vec<Option<Wish>> = graph
            .outputs
            .iter()
            .zip(&sequence.outputs)
            .map(|(o, new)| match o.target {
                Target::Assign(input) => donation.wish(input, (*new)?),
                _ => None,
            })
            .collect();
        let mut moving = vec![false; sequence.launches.len()];
        for wish in wishes.iter().flatten() {
            moving[wish.launch] = donation.movable(wish.launch);
        }
        let mut donors = vec![None; wishes.len()];
        // For each launch that moves, the buffers that it writes over.
        let mut donated: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut any_stays = false;
        for (donor, wish) in donors.iter_mut().zip(&wishes) {
            let Some(wish) = wish.as_ref().filter(|w| donation.grants(w, &moving)) else {
                continue;
            };
            *donor = Some(wish.input);
            match moving[wish.launch] {
                true => donated.entry(wish.launch).or_default().push(wish.source),
                false => any_stays = true,
            }
        }
        donation.commit(self, &donated, any_stays);
        donors
    }
}

impl<'a> Donation<'a> {
    fn new(order: &Order, sequence: &'a Sequence, uses: &'a Uses) -> Donation<'a> {
        let mut position = vec![None; sequence.launches.len()];
        for (index, l) in order.run.iter().enumerate() {
            position[*l] = Some(index);
        }
        let fallible = |l: &usize| can_fail(&sequence.launches[*l]);
        Donation {
            sequence,
            uses,
            position,
            safe: order.run.iter().rposition(fallible).map_or(0, |i| i + 1),
        }
    }

    fn wish(&self, input: u32, new: BufId) -> Option<Wish> {
        let writers = self.uses.writers[ix(new)].iter();
        let first = writers.filter_map(|l| Some((self.position[*l]?, *l))).min();
        Some(Wish {
            input,
            source: self.uses.input(input)?,
            target: ix(new),
            launch: first?.1,
        })
    }

    /// A launch may move if nothing reads what it writes and it cannot fail.
    fn movable(&self, l: usize) -> bool {
        let launch = &self.sequence.launches[l];
        !can_fail(launch) && written(launch).all(|b| self.uses.readers[ix(b)].is_empty())
    }

    /// A launch may stay if nothing after it can fail or read the input.
    fn stays(&self, l: usize, input: usize) -> bool {
        self.position[l].is_some_and(|position| {
            position >= self.safe
                && self
                    .last_read(input, |_| true)
                    .is_none_or(|last| last <= position)
        })
    }

    /// The position in the run of the last reader of a buffer, among the launches that `is_counted` accepts.
    fn last_read(&self, buffer: usize, is_counted: impl Fn(usize) -> bool) -> Option<usize> {
        let readers = self.uses.readers[buffer].iter().filter(|l| is_counted(**l));
        readers.filter_map(|l| self.position[*l]).max()
    }

    /// True if an output may be written over an input while the launches of `moving` move to the end.
    fn grants(&self, wish: &Wish, moving: &[bool]) -> bool {
        let launch = &self.sequence.launches[wish.launch];
        // Other launches that move to the end must not read the old value.
        let mut readers = self.uses.readers[wish.source].iter();
        let alone = readers.all(|l| *l == wish.launch || !moving[*l]);
        let reads_itself = read(launch).any(|b| ix(b) == wish.source);
        let pairs = launch
            .in_place
            .iter()
            .any(|(r, w)| ix(launch.args[*r]) == wish.source && ix(launch.args[*w]) == wish.target);
        let placed = moving[wish.launch] || self.stays(wish.launch, wish.source);
        // A library can't be kept from writing.
        let guarded = !matches!(*launch.kernel, Kernel::Library(_));
        guarded && placed && alone && (!reads_itself || pairs)
    }

    /// Moves launches, each with the buffers that it writes over. Small ones move to the end, where they start
    /// together. The others would hold more memory than that is worth: they move after the last reader of their
    /// buffers or to `safe`, after which nothing can fail, whichever is later.
    fn commit(&self, order: &mut Order, donated: &HashMap<usize, Vec<usize>>, any_stays: bool) {
        let is_moved = |l: usize| donated.contains_key(&l);
        let waits = |l: &Launch| matches!(*l.kernel, Kernel::Tile(_)) && can_join(self.sequence, l);
        let is_early = |l: usize| !waits(&self.sequence.launches[l]);
        let early = order.run[..self.safe].iter().filter(|l| !is_moved(**l));
        let early = early.count();
        let mut run: Vec<usize> = Vec::with_capacity(order.run.len());
        // For each step of the run, the launches that run after it, once their buffers are read no more.
        let mut later: Vec<Vec<usize>> = vec![Vec::new(); order.run.len()];
        for (position, l) in order.run.iter().enumerate() {
            match donated.get(l) {
                None => run.push(*l),
                Some(buffers) if is_early(*l) => {
                    let last = |b: &usize| self.last_read(*b, |l| !is_moved(l));
                    let after = buffers.iter().filter_map(last).fold(position, usize::max);
                    later[after.max(self.safe.saturating_sub(1))].push(*l);
                }
                Some(_) => order.commit.push(*l),
            }
            run.append(&mut later[position]);
        }
        let complete = run.len() + order.commit.len() == order.run.len();
        debug_assert!(complete, "every launch runs once");
        let commits = any_stays || donated.keys().any(|l| is_early(*l));
        order.commit_from = if commits { early } else { run.len() };
        order.run = run;
    }
}

/// True if a launch may report a data error.
fn can_fail(launch: &Launch) -> bool {
    let inner = launch.bodies.iter().flat_map(|b| &b.launches);
    !launch.sites.is_empty() || inner.into_iter().any(can_fail)
}
