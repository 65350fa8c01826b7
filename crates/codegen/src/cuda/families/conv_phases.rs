//! The gradient of a convolution's input, by phases of its stride: along an axis of stride s, the places
//! q · s + r of one phase r meet only every so many taps of the filter, and no other phase meets these.

use super::call::Call;
use super::conv_sizes::{Sizes, eights, list};
use super::gemm::Operand;
use crate::cuda::source::Source;
use crate::work::Slot;
use kiln_base::Dim;
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::CudaCpp;
use kiln_plan::{Conv, ConvRole, Images};

/// How the places and taps of a convolution fall into phases.
pub(super) struct Phases {
    /// How many there are.
    pub count: i64,
    /// Places of a phase at most, one number an axis.
    pub places: Vec<Dim>,
    /// From a tap that a phase meets to the next.
    hop: Vec<Dim>,
    /// The divisor that stride and dilation share.
    unit: Vec<Dim>,
    /// What `dilation / unit` has to be multiplied by to be 1 modulo `hop`.
    inverse: Vec<Dim>,
    /// Taps that a phase meets at most.
    pub turns: Vec<Dim>,
}

impl Phases {
    pub fn of(c: &Conv) -> Phases {
        let number = |d: &Dim| d.as_const().expect("strides and dilations are numbers");
        let strides: Vec<i64> = c.stride.iter().map(number).collect();
        let dilations: Vec<i64> = c.dilation.iter().map(number).collect();
        let steps = || strides.iter().copied().zip(dilations.iter().copied());
        let units: Vec<i64> = steps().map(|(s, d)| gcd(s, d)).collect();
        let hops: Vec<i64> = steps().zip(&units).map(|((s, _), g)| s / g).collect();
        let inverses = steps().zip(&units).map(|((s, d), g)| inverse(d / g, s / g));
        let inverse = inverses.map(Dim::Const).collect();
        let shared = |whole: &[Dim], by: &[i64]| -> Vec<Dim> {
            let each = whole.iter().zip(by);
            each.map(|(n, by)| (n + &Dim::Const(by - 1)).div_floor(*by))
                .collect()
        };
        Phases {
            count: strides.iter().product(),
            places: shared(&c.input, &strides),
            turns: shared(&c.kernel, &hops),
            hop: hops.into_iter().map(Dim::Const).collect(),
            unit: units.into_iter().map(Dim::Const).collect(),
            inverse,
        }
    }
    /// The classes of the operands of a convolution or of one of its gradients, behind what they are compiled for.
    pub fn classes(&self, c: &Conv) -> String {
        let axes = format!("constexpr int AXES = {};\n", c.kernel.len().max(1));
        let [own, classes] = match c.role {
            ConvRole::Input => [
                format!(
                    "constexpr int PHASES = {};\nconstexpr bool CHANNELS_LAST = {};\n\
                     __device__ __forceinline__ Acc load(Elem x) {{ return {}; }}\n",
                    self.count,
                    c.images != Images::ChannelsFirst,
                    CudaCpp::loaded("x", c.dtype())
                ),
                include_str!("conv_phases.cu").into(),
            ],
            role => [
                format!(
                    "constexpr bool TAPS_ARE_LINES = {};\n",
                    role == ConvRole::Weight
                ),
                concat!(
                    include_str!("conv_interleaved.cu"),
                    include_str!("conv_windows.cu")
                )
                .into(),
            ],
        };
        axes + &own + include_str!("conv.cu") + &classes
    }

    /// The filters, and what of y the places of a phase meet; with channels last the other way round.
    pub fn operands(&self, source: &mut Source, call: &Call, c: &Conv, s: &Sizes) -> [Operand; 2] {
        let [y, w] = c.operands.map(|o| call.pointer(Slot::Arg(o as usize)));
        let last = c.images != Images::ChannelsFirst;
        let filter = &c.in_channels * &s.kernel;
        let (line, step) = match last {
            true => (&Dim::ONE, &c.in_channels),
            false => (&s.kernel, &Dim::ONE),
        };
        let sizes = [&s.w_group, line, &filter, step, &c.out_channels];
        let [w_group, line, filter, step, channels] = sizes.map(|d| source.dim(d));
        let phase = [
            list(source, &c.stride, 1),
            list(source, &c.padding, 0),
            list(source, &c.dilation, 1),
            list(source, &c.kernel, 1),
            list(source, &self.hop, 1),
            list(source, &self.turns, 1),
            list(source, &self.unit, 1),
            list(source, &self.inverse, 1),
        ];
        let phase = format!(
            "const Index group = batch / PHASES;\n\
             Phase phase = {{{channels}, {}}};\n\
             if (!phase.enter(batch % PHASES)) k = 0;\n",
            phase.join(", ")
        );
        let [[a, m], [b, n]] = match last {
            true => [["b", "n"], ["a", "m"]],
            false => [["a", "m"], ["b", "n"]],
        };
        let filters = format!(
            "const Filters {a} = {{{w} + group * {w_group}, {m}, {line}, {filter}, {step}, phase}};\n"
        );
        let y_last = c.images.last()[1];
        let (channel, step) = match y_last {
            true => (Dim::ONE, &c.groups * &c.out_channels),
            false => (s.output.clone(), Dim::ONE),
        };
        let sizes = [
            &(&c.out_channels * &channel),
            &s.y_image,
            &channel,
            &step,
            &s.input,
        ];
        let [y_group, image, channel, step, plane] = sizes.map(|d| source.dim(d));
        let extents = [
            list(source, &c.output, 1),
            list(source, &c.input, 1),
            list(source, &self.places, 1),
        ];
        let places = format!(
            "const Index plane = {plane};\n\
             const Places {b} = {{{y} + group * {y_group}, {n}, {image}, {channel}, {step}, {}, phase}};\n",
            extents.join(", ")
        );
        let filters = |first: &str| Operand {
            text: first.to_string() + &filters,
            along_k: !last,
            vector: last && eights(&c.in_channels),
        };
        let places = |first: &str| Operand {
            text: first.to_string() + &places,
            along_k: y_last,
            vector: y_last && eights(&c.out_channels),
        };
        match last {
            true => [places(&phase), filters("")],
            false => [filters(&phase), places("")],
        }
    }
}

/// `x` with `a * x` = 1 modulo `m`, of numbers that share no divisor.
fn inverse(a: i64, m: i64) -> i64 {
    (1..m).find(|x| a % m * x % m == 1).unwrap_or(0)
}

fn gcd(a: i64, b: i64) -> i64 {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}
