//! The layout of images in memory, by the measured times of convolutions.

use super::candidates::is_last;
use super::choose::{NETWORK, Why};
use super::fusion::{add, structure};
use super::program::Tuner;
use super::record::{Limits, Record, Trial};
use super::search::CandidateInfo;
use super::settings::{Mode, Precision};
use super::store::Store;
use super::subject::KernelSubject;
use super::{alone, key};
use crate::error::lower_error;
use crate::lowered::Lowered;
use crate::{CompileError, Options};
use kiln_base::Machine;
use kiln_codegen::{
    Body, Hint, Hints, KernelCalls, Layout, Options as LoweringOptions, Task, cpu_kernel,
};
use kiln_ir::{Graph, NodeId, Op};
use kiln_plan::{Images, Plan};
use std::sync::Arc;
use std::time::Duration;

/// The measurements of a convolution's times.
const LAYOUTS: [&str; 3] = ["default", "channels first", "channels last"];

/// The candidates to choose layouts: by the model, by the times of convolutions, and one layout wherever possible.
const CANDIDATES: [&str; 4] = ["by rule", "measured", "channels_first", "channels_last"];

/// Returns the hints for the layouts of a graph that were chosen earlier, if any.
pub(crate) fn known(graph: &Graph, machine: &Machine, options: &Options) -> Hints {
    let tuned = options.tune.mode != Mode::Off && options.gpu.is_none() && graph.symbols.is_empty();
    if !tuned || !are_measured(options) {
        return Hints::default();
    }
    let store = Store::of(&options.tune.store_path());
    let [network, times] = keys(graph, &key::device(machine));
    let limits = Limits {
        workspace: options.tune.workspace,
        same_bits: false,
    };
    let chosen = || {
        let record = store.get(&network)?;
        let candidate = record.best(&CANDIDATES, &limits)?;
        Some(hints(graph, &store.get(&times)?.trials, &candidate.name))
    };
    chosen().unwrap_or_default()
}

/// True if layouts follow from measurements. They do not where one layout is asked for, or where results must keep
/// their bits, since no convolution gives the same bits in another layout.
pub(super) fn are_measured(options: &Options) -> bool {
    let free = options.fuse && options.memory_budget.is_none();
    free && options.layout == Layout::Auto && options.tune.mode != Mode::Deterministic
}

/// Returns the keys in the store of the choice of a graph's layouts, and of the times of its convolutions.
fn keys(graph: &Graph, device: &str) -> [String; 2] {
    let suffix = format!("{:016x} | {}", structure(graph), key::stamp(device));
    [NETWORK, "layouts "].map(|prefix| format!("{prefix}{suffix}"))
}

/// Returns the hints of a candidate for layouts, from the times of convolutions.
fn hints(graph: &Graph, trials: &[Trial], candidate: &str) -> Hints {
    const MUCH: u32 = 1_000_000;
    let time = |id: NodeId, layout: &str| {
        let name = format!("{} {layout}", id.index());
        trials.iter().find(|t| t.name == name)?.time()
    };
    let hint = |id: NodeId| {
        let [default, first, last] = LAYOUTS.map(|layout| time(id, layout));
        let default = default?.as_secs_f64();
        let relative = |t: Duration| (1e3 * t.as_secs_f64() / default) as u32;
        let (first, last) = match candidate {
            "measured" => (relative(first?).min(MUCH), relative(last?).min(MUCH)),
            "channels_first" => (0, MUCH),
            "channels_last" => (MUCH, 0),
            _ => return None,
        };
        Some((id, Hint::Images(first, last)))
    };
    let convs = graph.iter().filter(|(_, n)| matches!(n.op, Op::Conv(_)));
    convs.filter_map(|(id, _)| hint(id)).collect()
}

impl Tuner<'_> {
    /// Chooses the layout of images: times the convolutions, then the whole program with each candidate.
    pub(super) fn choose_layouts(
        &mut self,
        graph: &Graph,
        options: &LoweringOptions,
    ) -> Result<Hints, CompileError> {
        let [key, times_key] = keys(graph, &self.device);
        if let Some(choice) = self.chooser.known(&key)
            && let Some(times) = self.chooser.stored(&times_key)
        {
            return Ok(hints(graph, &times.trials, &choice.chosen));
        }
        let Some((trials, all)) = self.convolutions(graph, options)? else {
            return Ok(Hints::default());
        };
        if !all {
            self.chooser.leave(key, CANDIDATES[0]);
            return Ok(Hints::default());
        }
        let times = Record::new(times_key, trials);
        let mut list: Vec<(CandidateInfo, Plan)> = Vec::new();
        for candidate in CANDIDATES {
            let hints = hints(graph, &times.trials, candidate);
            let mut lowered = Lowered::hinted(graph.clone(), options, &hints)?;
            self.tune_program(&mut lowered.program);
            let lowered = Lowered::chosen(lowered.graph, lowered.program)?;
            add(&mut list, candidate, lowered);
        }
        let names: Vec<CandidateInfo> = list.iter().map(|(c, _)| c.clone()).collect();
        let choice = self.chooser.choose(key, &names, || {
            let args = list
                .first()
                .map_or_else(Vec::new, |(_, plan)| alone::args(plan));
            Arc::new(KernelSubject::of_networks(list, args))
        });
        let chosen = hints(graph, &times.trials, &choice.chosen);
        if choice.why == Why::Measured {
            self.chooser.keep(times);
        }
        Ok(chosen)
    }

    /// Times convolutions: by default with channels first, by the best algorithm with channels first, and with
    /// channels last. Also returns whether all have times. `None` if there is no choice.
    fn convolutions(
        &mut self,
        graph: &Graph,
        options: &LoweringOptions,
    ) -> Result<Option<(Vec<Trial>, bool)>, CompileError> {
        let lowered = |layout| {
            let options_with_layout = LoweringOptions { layout, ..*options };
            kiln_codegen::lower(graph, &options_with_layout).map_err(|e| lower_error(graph, e))
        };
        let programs = [
            lowered(Layout::ChannelsFirst)?,
            lowered(Layout::ChannelsLast)?,
        ];
        if programs[1].layout.channels_last == 0 {
            return Ok(None);
        }
        let (mut trials, mut complete) = (Vec::new(), true);
        for first in &programs[0].tasks {
            let Some(id) = convolution(graph, first).filter(|_| complete) else {
                continue;
            };
            let is_same = |t: &&Task| convolution(graph, t) == Some(id) && is_last(&t.work.body);
            let Some(last) = programs[1].tasks.iter().find(is_same) else {
                continue;
            };
            // One right after the other, since a machine is not equally fast at all times.
            let times = [self.times(first), self.times(last)];
            let [Some([default, first]), Some([_, last])] = times else {
                complete = false;
                continue;
            };
            for (layout_name, time) in LAYOUTS.iter().zip([default, first, last]) {
                let name = format!("{} {layout_name}", id.index());
                trials.push(Trial::new(&name, 0, vec![time.as_nanos() as u64]));
            }
        }
        Ok(Some((trials, complete)))
    }

    /// The time of a task by default, and the time of its chosen candidate; `None` where they are not known.
    fn times(&mut self, task: &Task) -> Option<[Duration; 2]> {
        let mut task = task.clone();
        let exact = self.precision == Precision::Exact;
        if let Body::Conv(c) = &mut task.work.body
            && c.images == Images::ToChannelsLast
        {
            // The cost of transposing the image is known separately.
            c.images = Images::ChannelsLast;
            // The other candidates are schedules of the transposed one.
            task.candidates.truncate(1);
            task.candidates[0].calls = KernelCalls::one(cpu_kernel(&task.work, exact), &task.work);
        }
        let choice = self.choose(&mut task)?;
        let time = |name: &str| choice.trials.iter().find(|t| t.name == name)?.time();
        Some([time(choice.candidates.first()?)?, time(&choice.chosen)?])
    }
}

/// The convolution that a task computes.
fn convolution(graph: &Graph, task: &Task) -> Option<NodeId> {
    let is_conv = |id: &&NodeId| matches!(graph.node(**id).op, Op::Conv(_));
    let conv = task.work.body.is_conv();
    conv.then(|| task.nodes.iter().find(is_conv).copied())?
}
