use crate::{Algorithm, Conv, ConvRole, Images, Kernel, MatMul, Matrix};
use kiln_base::{DType, Dim, Sym};

/// Returns a product of f32, whose matrices are row-major.
fn product([m, k, n]: [Dim; 3]) -> Kernel {
    let matrix = |arg, row: &Dim| Matrix {
        arg,
        offset: Dim::ZERO,
        batch_strides: vec![],
        row: row.clone(),
        col: Dim::ONE,
    };
    Kernel::MatMul(MatMul {
        dtypes: [DType::F32; 2],
        reduce_range: false,
        batch: vec![],
        lhs: matrix(0, &k),
        rhs: matrix(1, &n),
        m,
        k,
        n,
        out: 2,
        prologues: [None, None],
        epilogue: None,
        algorithm: Default::default(),
    })
}

/// Returns a convolution, or a gradient of one, of images of this height and width. A filter has `kernel` rows and
/// columns; with a stride of 1, padding keeps the size.
fn conv(
    role: ConvRole,
    [batch, cin, cout, height, width]: [Dim; 5],
    [kernel, stride]: [i64; 2],
) -> Kernel {
    let pair = |n: i64| vec![Dim::from(n); 2];
    let out = |d: &Dim| &(d - &Dim::ONE).div_floor(stride) + &Dim::ONE;
    Kernel::Conv(Conv {
        dtypes: [DType::F32; 2],
        reduce_range: false,
        role,
        batch,
        groups: Dim::ONE,
        in_channels: cin,
        out_channels: cout,
        output: vec![out(&height), out(&width)],
        input: vec![height, width],
        kernel: pair(kernel),
        stride: pair(stride),
        padding: pair(kernel / 2),
        dilation: pair(1),
        operands: [0, 1],
        out: 2,
        prologue: None,
        epilogue: None,
        algorithm: Default::default(),
        images: Images::ChannelsFirst,
    })
}

/// Returns pseudo-random choices from a list.
fn picks(seed: u64) -> impl FnMut(&[i64]) -> i64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |from| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        from[(state >> 11) as usize % from.len()]
    }
}

/// Returns the algorithms for these sizes of a kernel of `N` sizes, without packed weights and with them. Checks that
/// they do not depend on the sizes that were known when the algorithm was decided.
fn alike<const N: usize>(sizes: [i64; N], kernel: impl Fn([Dim; N]) -> Kernel) -> [Algorithm; 2] {
    let decided = |packs, open: usize| {
        let dim = |i: usize| match open >> i & 1 {
            1 => Dim::symbol(Sym(i as u32)),
            _ => Dim::from(sizes[i]),
        };
        let kernel = kernel(std::array::from_fn(dim));
        let decision = kernel.by_default(packs, false);
        assert!(open > 0 || decision.one().is_some(), "{decision}");
        kernel
            .by(decision)
            .computed_by(&sizes)
            .expect("there is a way")
    };
    let [by, packed] = [false, true].map(|packs| {
        let known = decided(packs, 0);
        for open in 1..1 << N {
            // Symbols are at least 2.
            if (0..N).all(|i| open >> i & 1 == 0 || sizes[i] >= 2) {
                assert_eq!(decided(packs, open), known, "{sizes:?}, open {open:b}");
            }
        }
        let legal = kernel(sizes.map(Dim::from)).algorithms(&sizes);
        assert!(legal.contains(&known), "{known} of {legal:?}");
        known
    });
    assert!(packed == by || packed == Algorithm::Packed);
    [by, packed]
}

#[test]
fn open_and_known_sizes_decide_alike() {
    const SIZES: [i64; 14] = [1, 2, 3, 7, 11, 12, 31, 32, 33, 64, 200, 512, 513, 3000];
    const CHANNELS: [i64; 6] = [1, 2, 11, 12, 13, 64];
    let mut seen = Vec::new();
    for seed in 0..400 {
        let mut pick = picks(seed);
        let sizes = [0; 3].map(|_| pick(&SIZES));
        seen.extend(alike(sizes, product));
        let role = [ConvRole::Result, ConvRole::Input, ConvRole::Weight][seed as usize % 3];
        let filter = [pick(&[1, 3, 5]), pick(&[1, 1, 2])];
        let channels = [pick(&[1, 2, 8]), pick(&CHANNELS), pick(&CHANNELS)];
        let sizes = [
            channels[0],
            channels[1],
            channels[2],
            pick(&SIZES[..11]),
            pick(&SIZES[..11]),
        ];
        seen.extend(alike(sizes, |sizes| conv(role, sizes, filter)));
    }
    for by in [
        Algorithm::Vector,
        Algorithm::Packed,
        Algorithm::Panels,
        Algorithm::Direct,
    ] {
        assert!(seen.contains(&by), "{by}");
    }
}

#[test]
fn what_is_known_is_decided() {
    let rows = || Dim::symbol(Sym(0));
    let text = |kernel: Kernel, packs| kernel.by_default(packs, false).to_string();
    let product = |k: i64, n: i64| product([rows(), k.into(), n.into()]);
    assert_eq!(text(product(64, 64), true), "packed");
    assert_eq!(text(product(64, 64), false), "panels");
    assert_eq!(text(product(64, 7), true), "panels");
    assert_eq!(text(product(64, 1), true), "vector");
    let image = [rows(), 16.into(), 16.into(), 56.into(), 56.into()];
    assert_eq!(text(conv(ConvRole::Result, image, [3, 1]), true), "direct");
}

#[test]
fn tiles_are_transformed_where_weights_are_packed_and_that_pays() {
    let rows = || Dim::symbol(Sym(0));
    let last = |sizes: [Dim; 5], filter| {
        let Kernel::Conv(c) = conv(ConvRole::Result, sizes, filter) else {
            panic!("a convolution");
        };
        Kernel::Conv(Conv {
            images: Images::ChannelsLast,
            ..c
        })
    };
    let image = |channels: i64, n: i64| [1, channels, channels, n, n].map(Dim::from);
    let text = |kernel: Kernel, packs, exact| kernel.by_default(packs, exact).to_string();
    for (channels, n) in [(64, 56), (128, 28), (256, 14), (64, 128)] {
        let of = |packs, exact| text(last(image(channels, n), [3, 1]), packs, exact);
        assert_eq!(of(true, false), "winograd_2");
        assert_eq!([of(false, false), of(true, true)], ["direct"; 2]);
    }
    // Most of a tile lies outside of the image, or filters have a stride or another size.
    for (sizes, filter) in [
        (image(256, 1), [3, 1]),
        (image(64, 56), [3, 2]),
        (image(64, 56), [1, 1]),
    ] {
        assert_eq!(text(last(sizes, filter), true, false), "direct");
    }
    let open = || [2.into(), 64.into(), 64.into(), rows(), rows()];
    let kernel = last(open(), [3, 1]);
    assert_eq!(text(kernel.clone(), true, false), "winograd_2 or direct");
    let kernel = kernel.clone().by(kernel.by_default(true, false));
    assert!(kernel.packs_by_symbols());
    for n in 2..70 {
        let known = last([2, 64, 64, n, n].map(Dim::from), [3, 1]);
        let known = known.clone().by(known.by_default(true, false));
        assert_eq!(kernel.computed_by(&[n]), known.computed_by(&[]), "{n}");
    }
    // If there is nothing to sum, nothing is transformed.
    let none = last([0, 64, 64, 9, 9].map(Dim::from), [3, 1]);
    let none = none.clone().by(none.by_default(true, false));
    assert_eq!(none.computed_by(&[]), Some(Algorithm::Direct));
}
