//! Convolutions with a filter of its own for each channel: a thread for each element of the result, since
//! nothing is shared that tiles of products would share. Neighbouring threads have neighbouring elements, in
//! either layout.

use super::call::{Call, Store, elements, few, line_of_blocks, lines};
use super::conv_last::{classes, patches};
use super::conv_sizes::{Sizes, name};
use super::made;
use crate::cuda::job::Job;
use crate::cuda::source::Index;
use crate::cuda::values::Values;
use crate::schedule::Schedule;
use crate::work::{Printed, Slot, Way};
use kiln_plan::{Conv, ConvRole, Images};

const THREADS: u32 = 256;
/// The most taps whose loop is unrolled.
const UNROLLED: i64 = 25;

/// Whether each channel has a filter of its own.
pub(super) fn computes(c: &Conv) -> bool {
    c.role == ConvRole::Result && c.in_channels.is(1) && c.out_channels.is(1)
}

pub(super) fn print(work: Job, c: &Conv) -> Way {
    let (sizes, store) = (Sizes::of(c), Store::of(work, c.out, c.dtype()));
    let made = work.made()[0];
    let mut call = Call::new(work);
    store.push(&mut call);
    for (slot, dtype) in made::reads([made, None], c.operands, c.dtype()) {
        call.push(slot, dtype, false);
    }
    let kernels = work.kernels();
    let short = sizes.reach(c).iter().all(few)
        && kernels
            .into_iter()
            .all(|k| Values::index_type(k) == Index::Int);
    let index = if short { Index::Int } else { Index::Long };
    let mut source = call.source(&name(work, c), index);
    source.scope(include_str!("multiply_add.cu"));
    source.scope(&elements(c.dtype(), index));
    source.scope(&classes(c, made));
    let x = patches(&mut source, &call, c, &sizes, made);
    let w = call.pointer(Slot::Arg(c.operands[1] as usize));
    let numbers = [
        &sizes.reach(c)[1],
        &(&c.batch * &sizes.output),
        &c.groups,
        &sizes.output,
        &sizes.kernel,
    ];
    let [total, places, channels, plane, taps] = numbers.map(|d| source.dim(d));
    let place = match c.images {
        Images::ChannelsFirst => format!(
            "const Index channel = at / {plane} % {channels}, place = at / ({plane} * {channels}) * {plane} + at % {plane};"
        ),
        _ => format!("const Index channel = at % {channels}, place = at / {channels};"),
    };
    let unrolled = sizes.kernel.as_const().is_some_and(|n| n <= UNROLLED);
    let unroll = if unrolled {
        "#pragma unroll"
    } else {
        "#pragma unroll 1"
    };
    let text = format!(
        "\
const Index at = (Index)blockIdx.x * {THREADS} + threadIdx.x;
if (at >= {total}) return;
{place}
const Index m = {places}, batch = channel;
{}auto window = a.line(place);
Acc raw = 0;
{unroll}
for (Index k = 0; k < {taps}; k++) raw = multiply_add(load(a.at(window, k)), load({w}[channel * {taps} + k]), raw);",
        x.text
    );
    lines(&mut source, &text);
    store.print(&mut source, &call);
    let grid = line_of_blocks(sizes.reach(c)[1].clone(), THREADS);
    let step = call.step(source.finish(grid, [THREADS, 1, 1], 0));
    Way {
        schedule: Schedule::Sums,
        approximation: None,
        predicted: None,
        printed: Printed {
            steps: vec![step],
            scratch: Vec::new(),
            in_place: work.in_place.clone(),
        },
    }
}
