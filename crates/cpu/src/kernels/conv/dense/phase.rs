//! The split of a strided axis into convolutions with unit stride in their results.

use kiln_kernel::affine::ceil;
use kiln_kernel::bugs::bug;
use kiln_plan::ConvRole;
use kiln_plan::cost::geometry::Axis;

/// The results of an axis that the same taps contribute to.
#[derive(Debug)]
pub(super) struct Phase {
    /// The convolution that computes these results.
    pub axis: Axis,
    /// The first of them among all results, and their stride.
    pub first: i64,
    pub step: i64,
    /// The taps of the filter, ordered by the place that they read.
    pub taps: Vec<i64>,
}

impl Phase {
    /// Returns all phases of an axis. A gradient of images has one for each offset within the stride. Image `i` gets
    /// from tap `k` the contribution of the result at `(i + padding - k · dilation) / stride`, where that is an
    /// integer.
    pub(super) fn all(a: &Axis, role: ConvRole) -> Vec<Phase> {
        if role != ConvRole::Input {
            return vec![Phase {
                axis: *a,
                first: 0,
                step: 1,
                taps: (0..a.kernel).collect(),
            }];
        }
        let phase = |first: i64| {
            let at = |k: i64| first + a.padding - k * a.dilation;
            let whole = |k: &i64| at(*k).rem_euclid(a.stride) == 0;
            let taps: Vec<i64> = (0..a.kernel).rev().filter(whole).collect();
            let source = |i: usize| taps.get(i).map(|k| at(*k) / a.stride);
            let begin = source(0).unwrap_or(0);
            Phase {
                axis: Axis {
                    input: a.output,
                    output: ceil(a.input - first, a.stride),
                    kernel: taps.len() as i64,
                    stride: 1,
                    padding: -begin,
                    dilation: source(1).map_or(1, |next| next - begin),
                },
                first,
                step: a.stride,
                taps,
            }
        };
        (0..a.stride.min(a.input)).map(phase).collect()
    }

    /// Returns the bounds of its results within `from..to` of all results.
    pub(super) fn within(&self, from: i64, to: i64) -> (i64, i64) {
        let at = |i: i64| ceil((i - self.first).max(0), self.step).min(self.axis.output);
        (at(from), at(to).max(at(from)))
    }
}

/// Returns the bounds of the places that the results `from..to` of an axis read; these may include padding.
pub(super) fn window(phases: &[Phase], from: i64, to: i64) -> (i64, i64) {
    let read = phases.iter().filter_map(|p| {
        let (first, end) = p.within(from, to);
        let reads = first < end && p.axis.kernel > 0;
        let last = p.axis.kernel - 1;
        let last = bug("the halo of a block is a tap short", last, |n| n - 1);
        reads.then(|| (p.axis.source(first, 0), p.axis.source(end - 1, last) + 1))
    });
    let all = read.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)));
    all.unwrap_or((0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_of_a_gradient_read_what_taps_wrote() {
        for (input, kernel, stride, padding, dilation) in [
            (7, 3, 1, 1, 1),
            (8, 2, 2, 0, 1),
            (9, 3, 2, 1, 1),
            (11, 3, 2, 2, 2),
            (10, 1, 3, 0, 1),
            (6, 4, 3, -1, 1),
            (13, 5, 4, 3, 6),
        ] {
            let output = (input + 2 * padding - (kernel - 1) * dilation - 1) / stride + 1;
            let axis = Axis {
                input,
                output,
                kernel,
                stride,
                padding,
                dilation,
            };
            let mut found = vec![];
            for p in Phase::all(&axis, ConvRole::Input) {
                for j in 0..p.axis.output {
                    for (k, tap) in p.taps.iter().enumerate() {
                        let o = p.axis.source(j, k as i64);
                        if (0..output).contains(&o) {
                            found.push((p.first + j * p.step, *tap, o));
                        }
                    }
                }
            }
            let taps = |o: i64| (0..kernel).map(move |k| (o, k));
            let all = (0..output).flat_map(taps);
            let all = all.map(|(o, k)| (axis.source(o, k), k, o));
            let mut all: Vec<_> = all.filter(|(i, ..)| (0..input).contains(i)).collect();
            found.sort_unstable();
            all.sort_unstable();
            assert_eq!(found, all, "{axis:?}");
        }
    }
}
