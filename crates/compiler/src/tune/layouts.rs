//! How images lie in memory, by what convolutions were measured to take.

use super::fusion::structure;
use super::kernel::is_last;
use super::key;
use super::program::Tuner;
use super::record::{Outcome, Record, Trial};
use super::settings::Mode;
use super::store::Store;
use crate::pipeline::{CompileError, Options, lower_error};
use kiln_base::plan::{ConvRole, Images, Kernel};
use kiln_codegen::{Hint, Hints, Launch, Layout, Program};
use kiln_ir::{Graph, NodeId, Op};
use std::time::Duration;

/// What is known of a convolution's times.
const LAYOUTS: [&str; 3] = ["default", "channels first", "channels last"];

/// What the store knows of the layouts of a graph.
pub(crate) fn known(graph: &Graph, options: &Options) -> Hints {
    let may = options.tune.mode != Mode::Off && options.gpu.is_none() && graph.symbols.is_empty();
    if !may || !are_measured(options) {
        return Hints::default();
    }
    let store = Store::of(&options.tune.store_path());
    let record = store.get(&key_of(graph, &key::device(None)));
    record.map_or_else(Hints::default, |r| images(graph, &r.trials))
}

/// Whether layouts follow from measurements: not where one is asked for, and not where bits are to stay, since
/// in another layout no convolution has them.
pub(super) fn are_measured(options: &Options) -> bool {
    let free = options.fuse && options.memory_budget.is_none();
    free && options.layout == Layout::Auto && options.tune.mode != Mode::Deterministic
}

/// What stands for the layouts of a graph in the store.
fn key_of(graph: &Graph, device: &str) -> String {
    format!("layouts {:016x} | {}", structure(graph), key::stamp(device))
}

/// What convolutions take with channels first, by their best algorithms, and last, where that was measured.
fn images(graph: &Graph, trials: &[Trial]) -> Hints {
    let time = |id: NodeId, of: &str| {
        let name = format!("{} {of}", id.index());
        trials.iter().find(|t| t.name == name)?.time()
    };
    let hint = |id: NodeId| {
        let [default, first, last] = LAYOUTS.map(|of| time(id, of));
        let default = default?.as_secs_f64();
        let part = |t: Duration| (1e3 * t.as_secs_f64() / default).min(1e6) as u32;
        Some((id, Hint::Images(part(first?), part(last?))))
    };
    let convs = graph.iter().filter(|(_, n)| matches!(n.op, Op::Conv(_)));
    convs.filter_map(|(id, _)| hint(id)).collect()
}

impl Tuner<'_> {
    /// Measures what convolutions take with channels first, by their best algorithms, and last.
    pub(super) fn layouts(
        &mut self,
        graph: &Graph,
        options: &Options,
    ) -> Result<Hints, CompileError> {
        let (trials, all) = self.convolutions(graph, options)?;
        if all && options.tune.mode != Mode::Frozen {
            let key = key_of(graph, &self.device);
            self.chooser.keep(Record::new(key, trials.clone()));
        }
        Ok(images(graph, &trials))
    }

    /// Times convolutions: by default with channels first, by the best algorithm so, and with channels last.
    /// Says as well whether all have times.
    fn convolutions(
        &mut self,
        graph: &Graph,
        options: &Options,
    ) -> Result<(Vec<Trial>, bool), CompileError> {
        let lowered = |layout| {
            let with = kiln_codegen::Options {
                layout,
                ..options.codegen()
            };
            kiln_codegen::lower(graph, &with).map_err(|e| lower_error(graph, e))
        };
        let programs = [
            lowered(Layout::ChannelsFirst)?,
            lowered(Layout::ChannelsLast)?,
        ];
        let (mut trials, mut all) = (Vec::new(), true);
        for first in &programs[0].launches {
            let Some(id) = convolution(graph, first) else {
                continue;
            };
            let same = |l: &&Launch| convolution(graph, l) == Some(id) && is_last(&l.kernel);
            let Some(last) = programs[1].launches.iter().find(same) else {
                continue;
            };
            // One after the other, since a machine is not as fast at all times.
            let times = [
                self.times(&programs[0], first),
                self.times(&programs[1], last),
            ];
            let [Some([default, first]), Some([_, last])] = times else {
                all = false;
                continue;
            };
            trials.extend(
                LAYOUTS
                    .iter()
                    .zip([default, first, last])
                    .map(|(of, time)| Trial {
                        name: format!("{} {of}", id.index()),
                        workspace: 0,
                        same_bits: false,
                        outcome: Outcome::Timed(vec![time.as_nanos() as u64]),
                    }),
            );
        }
        Ok((trials, all))
    }

    /// What a launch takes by default, and as it is chosen; none where that is not known.
    fn times(&mut self, program: &Program, launch: &Launch) -> Option<[Duration; 2]> {
        let mut launch = launch.clone();
        if let Kernel::Conv(c) = &mut launch.kernel
            && c.images == Images::Turned
        {
            // What it costs to turn the image is known apart from that.
            c.images = Images::ChannelsLast;
        }
        let (choice, _) = self.choose(program, &launch)?;
        let time = |name: &str| choice.trials.iter().find(|t| t.name == name)?.time();
        Some([time(choice.candidates.first()?)?, time(&choice.chosen)?])
    }
}

/// The convolution that a launch computes.
fn convolution(graph: &Graph, launch: &Launch) -> Option<NodeId> {
    let is_conv = |id: &&NodeId| matches!(graph.node(**id).op, Op::Conv(_));
    match &launch.kernel {
        Kernel::Conv(c) if c.role == ConvRole::Result => launch.nodes.iter().find(is_conv).copied(),
        _ => None,
    }
}
