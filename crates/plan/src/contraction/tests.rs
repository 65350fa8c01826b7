//! Contractions compute the definitions of products and convolutions.

use super::*;
use crate::{Conv, ConvRole, Images, MatMul, Matrix};
use kiln_base::DType;

/// Pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, from: i64, to: i64) -> i64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        from + ((self.0 >> 33) % (to - from + 1) as u64) as i64
    }

    fn array(&mut self, len: i64) -> Vec<f64> {
        (0..len).map(|_| self.next(-4, 4) as f64).collect()
    }
}

/// The sizes of a convolution of two axes.
#[derive(Clone, Debug)]
struct Sizes {
    batch: i64,
    groups: i64,
    ins: i64,
    outs: i64,
    /// Input, output, filter, stride, padding and dilation of each axis.
    axes: [[i64; 6]; 2],
}

impl Sizes {
    fn random(n: &mut Numbers) -> Sizes {
        let mut axis = || {
            let [kernel, stride, dilation] = [n.next(1, 4), n.next(1, 4), n.next(1, 4)];
            let padding = n.next(-1, 3);
            let least = (kernel - 1) * dilation + 1 - 2 * padding;
            let input = n.next(least.max(1), least.max(1) + 6);
            let output = (input + 2 * padding - (kernel - 1) * dilation - 1) / stride + 1;
            [input, output, kernel, stride, padding, dilation]
        };
        let axes = [axis(), axis()];
        Sizes {
            batch: n.next(1, 3),
            groups: n.next(1, 3),
            ins: n.next(1, 3),
            outs: n.next(1, 3),
            axes,
        }
    }

    fn conv(&self, role: ConvRole, images: Images) -> Conv {
        let list = |i: usize| self.axes.iter().map(|a| Dim::Const(a[i])).collect();
        Conv {
            dtypes: [DType::F32; 2],
            reduce_range: false,
            role,
            batch: Dim::Const(self.batch),
            groups: Dim::Const(self.groups),
            in_channels: Dim::Const(self.ins),
            out_channels: Dim::Const(self.outs),
            input: list(0),
            output: list(1),
            kernel: list(2),
            stride: list(3),
            padding: list(4),
            dilation: list(5),
            operands: [0, 1],
            out: 2,
            prologue: None,
            epilogue: None,
            algorithm: Default::default(),
            images,
        }
    }

    fn extent(&self, i: usize) -> i64 {
        self.axes.iter().map(|a| a[i]).product()
    }

    /// Returns the numbers of elements of x, w and y.
    fn lens(&self) -> [i64; 3] {
        let Sizes {
            batch,
            groups,
            ins,
            outs,
            ..
        } = self;
        [
            batch * groups * ins * self.extent(0),
            groups * outs * ins * self.extent(2),
            batch * groups * outs * self.extent(1),
        ]
    }

    /// Calls `f` with the places in x, w and y of each product, for images and filters with channels last or not.
    fn products(&self, [x_last, y_last, w_last]: [bool; 3], mut f: impl FnMut([usize; 3])) {
        let Sizes {
            batch,
            groups,
            ins,
            outs,
            axes,
        } = self;
        let [a, b] = axes;
        let count = [*batch, *groups, *ins, *outs, a[1], b[1], a[2], b[2]];
        for mut i in 0..count.iter().product::<i64>() {
            let mut at = [0; 8];
            for (at, n) in at.iter_mut().zip(count).rev() {
                (*at, i) = (i % n, i / n);
            }
            let [image, group, c, o, y0, y1, t0, t1] = at;
            let x0 = y0 * a[3] + t0 * a[5] - a[4];
            let x1 = y1 * b[3] + t1 * b[5] - b[4];
            if !(0..a[0]).contains(&x0) || !(0..b[0]).contains(&x1) {
                continue;
            }
            let place = |last: bool, channels: i64, c: i64, [h, w]: [i64; 2], [y, x]: [i64; 2]| {
                let channel = group * channels + c;
                match last {
                    true => ((image * h + y) * w + x) * groups * channels + channel,
                    false => ((image * groups * channels + channel) * h + y) * w + x,
                }
            };
            let filter = group * outs + o;
            let w = match w_last {
                true => ((filter * a[2] + t0) * b[2] + t1) * ins + c,
                false => ((filter * ins + c) * a[2] + t0) * b[2] + t1,
            };
            f([
                place(x_last, *ins, c, [a[0], b[0]], [x0, x1]) as usize,
                w as usize,
                place(y_last, *outs, o, [a[1], b[1]], [y0, y1]) as usize,
            ]);
        }
    }
}

const LAYOUTS: [Images; 4] = [
    Images::ChannelsFirst,
    Images::ChannelsLast,
    Images::ToChannelsLast,
    Images::ToChannelsFirst,
];

#[test]
fn convolutions_of_any_geometry_and_layout() {
    let mut n = Numbers(1);
    for round in 0..120 {
        let sizes = Sizes::random(&mut n);
        let images = LAYOUTS[round % 4];
        let on_gpu = n.next(0, 1) == 1;
        let lens = sizes.lens();
        for (role, [first, second, to]) in [
            (ConvRole::Result, [0, 1, 2]),
            (ConvRole::Input, [2, 1, 0]),
            (ConvRole::Weight, [0, 2, 1]),
        ] {
            let conv = sizes.conv(role, images);
            let filters = conv.filters(on_gpu);
            let w_last = filters == Filters::ChannelsLast;
            let c = conv.contraction(filters);
            assert_eq!(c.verify(), Ok(()), "{sizes:?}\n{c}");
            let data = [first, second].map(|i| n.array(lens[i]));
            let [x_last, y_last] = images.last();
            let written = role == ConvRole::Weight;
            let mut expected = vec![0.0; lens[to] as usize];
            sizes.products([x_last, y_last, w_last && !written], |at| {
                expected[at[to]] += data[0][at[first]] * data[1][at[second]];
            });
            let of = c.operands.each_ref().map(|x| &data[usize::from(x.arg)][..]);
            assert_eq!(
                c.interpret(of, &[]),
                expected,
                "{role:?} {images:?} {sizes:?}\n{c}"
            );
            let batched = c.clone().batched(|_| true);
            assert_eq!(batched.interpret(of, &[]), expected, "{batched}");
        }
    }
}

#[test]
fn products_of_batches() {
    let matrix = |arg, batch: &[i64], row, col| Matrix {
        arg,
        offset: Dim::Const(2),
        batch_strides: batch.iter().copied().map(Dim::Const).collect(),
        row: Dim::Const(row),
        col: Dim::Const(col),
    };
    // Two by three products of 4 x 5 and 5 x 3 matrices; the left ones are transposed, the right ones shared.
    let p = MatMul {
        dtypes: [DType::F32; 2],
        reduce_range: false,
        batch: vec![Dim::Const(2), Dim::Const(3)],
        m: Dim::Const(4),
        k: Dim::Const(5),
        n: Dim::Const(3),
        lhs: matrix(0, &[60, 20], 1, 4),
        rhs: matrix(1, &[0, 15], 3, 1),
        out: 2,
        prologues: [None, None],
        epilogue: None,
        algorithm: Default::default(),
    };
    let mut n = Numbers(2);
    let data = [n.array(122), n.array(47)];
    let mut expected = vec![0.0; 72];
    for (i, out) in expected.iter_mut().enumerate() {
        let (b, r, c) = (i / 12, i / 3 % 4, i % 3);
        *out = (0..5)
            .map(|k| data[0][2 + b * 20 + r + k * 4] * data[1][2 + b % 3 * 15 + k * 3 + c])
            .sum();
    }
    let c = Contraction::from(&p);
    assert_eq!(c.verify(), Ok(()));
    assert_eq!(c.interpret([&data[0], &data[1]], &[]), expected, "{c}");
    let mut outside = c.clone();
    outside.operands[1].len = Dim::Const(46);
    assert!(outside.verify().is_err());
    let mut moves = c.clone();
    let row = moves.range(ROWS).start;
    moves.operands[1].strides[row] = Dim::ONE;
    assert!(moves.verify().is_err());
}

#[test]
fn what_one_loop_can_walk_is_one_loop() {
    let sizes = |kernel: i64, stride: i64, padding: i64| Sizes {
        batch: 8,
        groups: 1,
        ins: 16,
        outs: 24,
        axes: [[
            14,
            (14 + 2 * padding - kernel) / stride + 1,
            kernel,
            stride,
            padding,
            1,
        ]; 2],
    };
    let text = |s: &Sizes, role, images| {
        let conv = s.conv(role, images);
        conv.contraction(conv.filters(true)).to_string()
    };
    // A filter of one tap is a matrix product.
    let one = sizes(1, 1, 0);
    assert_eq!(
        text(&one, ConvRole::Result, Images::ChannelsLast),
        "for m < 1568 n < 24 k < 16\n  result[m*24 + n] += arg0[m*16 + k] * arg1[n*16 + k]"
    );
    assert_eq!(
        text(&one, ConvRole::Weight, Images::ChannelsLast),
        "for m < 24 n < 16 k < 1568\n  result[m*16 + n] += arg1[m + k*24] * arg0[n + k*16]"
    );
    assert_eq!(
        text(&sizes(3, 1, 1), ConvRole::Result, Images::ChannelsLast),
        "for m0 < 8 m1 < 14 m2 < 14 n < 24 k0 < 3 k1 < 3 k2 < 16\n  \
         result[m0*4704 + m1*336 + m2*24 + n] += \
         arg0[m0*3136 + m1*224 + m2*16 + k0*224 + k1*16 + k2 - 240; 0 <= m1 + k0 - 1 < 14; \
         0 <= m2 + k1 - 1 < 14] * arg1[n*144 + k0*48 + k1*16 + k2]"
    );
    // Two phases per axis, none of which reads outside except at the edges.
    assert_eq!(
        text(&sizes(2, 2, 0), ConvRole::Input, Images::ChannelsLast),
        "for b0 < 2 b1 < 2 m0 < 56 m1 < 7 n < 16 k < 24\n  result[b0*224 + b1*16 + m0*448 + m1*32 + n] += \
         arg0[m0*168 + m1*24 + k] * arg1[b0*32 + b1*16 + n + k*64], inside"
    );
}
