//! Products and convolutions of integers: their results, which wrap around, and their kernels.

use kiln::{Conv, DType, Tensor, Var, compile};

/// Random numbers of a dtype, among them its least and its greatest.
fn numbers(dtype: DType, n: usize, seed: &mut u64) -> Vec<i64> {
    let bits = 8 * dtype.size() as u32;
    let mut next = || {
        *seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let x = (*seed >> 11) as i64;
        match *seed >> 60 {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => x,
        }
    };
    let signed = dtype != DType::U8;
    let cut = |x: i64| match signed {
        true => x >> (64 - bits),
        false => ((x as u64) >> (64 - bits)) as i64,
    };
    (0..n).map(|_| cut(next())).collect()
}

fn tensor(dtype: DType, shape: &[usize], seed: &mut u64) -> (Tensor, Vec<i64>) {
    let values = numbers(dtype, shape.iter().product(), seed);
    let t = Tensor::from_slice(&values, shape.to_vec()).to_dtype(dtype);
    (t, values)
}

/// A number wrapped to a dtype.
fn wrapped(x: i64, dtype: DType) -> i64 {
    match dtype {
        DType::U8 => (x as u8).into(),
        DType::I8 => (x as i8).into(),
        DType::I16 => (x as i16).into(),
        DType::I32 => (x as i32).into(),
        _ => x,
    }
}

fn read(t: &Tensor) -> Vec<i64> {
    t.to_dtype(DType::I64).to_vec().unwrap()
}

/// `[m, k] · [k, n]`.
fn product(a: &[i64], b: &[i64], [m, k, n]: [usize; 3]) -> Vec<i64> {
    let sum = |i: usize, j: usize| {
        (0..k).fold(0i64, |s, t| {
            s.wrapping_add(a[i * k + t].wrapping_mul(b[t * n + j]))
        })
    };
    (0..m * n)
        .map(|at| sum(at / n.max(1), at % n.max(1)))
        .collect()
}

const SIZES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [3, 5, 7],
    [1, 70, 33],
    [40, 64, 1],
    [17, 31, 65],
    [64, 128, 48],
    [4, 0, 3],
    [0, 3, 4],
    [5, 1030, 9],
];

#[test]
fn products_wrap_around() {
    let seed = &mut 7;
    for dtype in [DType::U8, DType::I8, DType::I16, DType::I32, DType::I64] {
        for sizes @ [m, k, n] in SIZES {
            let (a, av) = tensor(dtype, &[m, k], seed);
            let (b, bv) = tensor(dtype, &[k, n], seed);
            let expected = product(&av, &bv, sizes);
            let expected: Vec<i64> = expected.iter().map(|x| wrapped(*x, dtype)).collect();
            assert_eq!(read(&a.matmul(&b)), expected, "{dtype} {sizes:?}");
            // The same product with transposed operands in memory, and in a batch.
            let (at, bt) = (a.t().contiguous().t(), b.t().contiguous().t());
            assert_eq!(read(&at.matmul(&bt)), expected, "{dtype} {sizes:?} turned");
            let batch = a.unsqueeze(0).matmul(b.unsqueeze(0));
            assert_eq!(read(&batch), expected, "{dtype} {sizes:?} batched");
            let both = kiln::stack(&[&a, &a], 0).matmul(kiln::stack(&[&b, &b], 0));
            assert_eq!(read(&both), [&expected[..], &expected].concat());
        }
    }
}

#[test]
fn bytes_that_were_cast_are_multiplied_as_bytes() {
    let seed = &mut 9;
    for [x, w] in [
        [DType::U8, DType::I8],
        [DType::I8, DType::I8],
        [DType::U8, DType::U8],
        [DType::I8, DType::U8],
        [DType::I16, DType::I16],
        [DType::I16, DType::U8],
    ] {
        for sizes @ [m, k, n] in SIZES {
            let (a, av) = tensor(x, &[m, k], seed);
            let (b, bv) = tensor(w, &[k, n], seed);
            let wide = |t: &Tensor| t.to_dtype(DType::I32);
            let expected = product(&av, &bv, sizes);
            let expected: Vec<i64> = expected.iter().map(|x| wrapped(*x, DType::I32)).collect();
            assert_eq!(
                read(&wide(&a).matmul(wide(&b))),
                expected,
                "{x} {w} {sizes:?}"
            );
            // A zero point is subtracted before the product.
            let zero: Vec<i64> = av.iter().map(|v| v - 3).collect();
            let expected: Vec<i64> = product(&zero, &bv, sizes)
                .iter()
                .map(|x| wrapped(*x, DType::I32))
                .collect();
            let weight = Var::new(b).unwrap();
            let f = compile(&a, |x| (wide(&x) - 3).matmul(wide(&weight.get()))).unwrap();
            assert_eq!(
                read(&f.run(&a).unwrap()),
                expected,
                "{x} {w} {sizes:?} shifted"
            );
        }
    }
}

/// A convolution as a plain sum of products.
fn convolved(
    (x, [batch, cin, high, wide]): (&[i64], [usize; 4]),
    (w, [cout, each, down, across]): (&[i64], [usize; 4]),
    (stride, padding): (usize, usize),
) -> Vec<i64> {
    let out = |n: usize, k: usize| (n + 2 * padding - k) / stride + 1;
    let (h, v) = (out(high, down), out(wide, across));
    let groups = cin / each;
    let mut sums = vec![];
    for at in 0..batch * cout * h * v {
        let (image, o, y, z) = (at / v / h / cout, at / v / h % cout, at / v % h, at % v);
        let mut sum = 0i64;
        for tap in 0..each * down * across {
            let (c, i, j) = (tap / across / down, tap / across % down, tap % across);
            let (row, column) = (y * stride + i, z * stride + j);
            let inside = (padding..high + padding).contains(&row)
                && (padding..wide + padding).contains(&column);
            if inside {
                let channel = image * cin + o / (cout / groups) * each + c;
                let from = (channel * high + row - padding) * wide + column - padding;
                sum = sum.wrapping_add(x[from].wrapping_mul(w[o * each * down * across + tap]));
            }
        }
        sums.push(sum);
    }
    sums
}

#[test]
fn convolutions_of_whole_numbers() {
    let seed = &mut 21;
    let cases = [
        ([2, 3, 9, 11], [8, 3, 3, 3], 1, 1),
        ([1, 8, 6, 5], [20, 8, 1, 1], 1, 0),
        ([2, 6, 7, 8], [4, 3, 3, 2], 2, 1),
        ([1, 5, 8, 8], [5, 1, 3, 3], 1, 1),
        ([1, 4, 8, 9], [8, 1, 3, 3], 1, 1),
        ([1, 36, 14, 14], [40, 36, 3, 3], 1, 1),
        ([3, 1, 5, 5], [1, 1, 2, 2], 1, 0),
    ];
    let bytes = [
        [DType::U8, DType::I8],
        [DType::I8, DType::I8],
        [DType::U8, DType::U8],
    ];
    let others = [DType::I16, DType::I32, DType::I64].map(|d| [d; 2]);
    for dtypes in bytes.into_iter().chain(others) {
        let [xd, wd] = dtypes;
        let sums = if xd == DType::I64 { xd } else { DType::I32 };
        for (xs, ws, stride, padding) in cases {
            let (x, xv) = tensor(xd, &xs, seed);
            let (w, wv) = tensor(wd, &ws, seed);
            let options = Conv::new()
                .stride(stride)
                .padding(padding)
                .groups((xs[1] / ws[1]) as i64);
            let expected = |xv: &[i64]| -> Vec<i64> {
                let sums_of = convolved((xv, xs), (&wv, ws), (stride, padding));
                sums_of.iter().map(|s| wrapped(*s, sums)).collect()
            };
            let wide = |t: &Tensor| t.to_dtype(sums);
            let y = wide(&x).conv2d_with(wide(&w), options.clone());
            assert_eq!(read(&y), expected(&xv), "{dtypes:?} {xs:?} {ws:?}");
            // A compiled function whose weights are packed before, with an epilogue and a narrow result.
            let weight = Var::new(w).unwrap();
            let f = compile(&x, |x| {
                let y = wide(&x).conv2d_with(wide(&weight.get()), options.clone());
                let y = y.to_dtype(DType::F32) * 0.25;
                y.round().clamp(-128.0, 127.0).to_dtype(DType::I8)
            });
            let expected: Vec<i64> = expected(&xv)
                .iter()
                .map(|s| (*s as f32 * 0.25).round_ties_even().clamp(-128.0, 127.0) as i64)
                .collect();
            let f = f.unwrap();
            for _ in 0..2 {
                assert_eq!(
                    read(&f.run(&x).unwrap()),
                    expected,
                    "{dtypes:?} {xs:?} {ws:?}"
                );
            }
        }
    }
}

#[test]
fn a_quantised_layer_is_one_kernel() {
    let seed = &mut 5;
    let (x, _) = tensor(DType::U8, &[6, 64], seed);
    let (w, _) = tensor(DType::I8, &[64, 40], seed);
    let weight = Var::new(w).unwrap();
    let scales = Var::new(Tensor::rand([40], DType::F32)).unwrap();
    let layer = compile(&x, |x| {
        let y = (x.to_dtype(DType::I32) - 7).matmul(weight.get().to_dtype(DType::I32));
        let y = y.to_dtype(DType::F32) * scales.get() + 0.5;
        y.relu().round().clamp(0.0, 255.0).to_dtype(DType::U8)
    })
    .unwrap();
    let explain = layer.explain();
    assert_eq!(explain.kernels_run(), 1, "{explain}");
    let products = explain.kernels.iter().filter(|k| k.name.contains("matmul"));
    assert_eq!(products.count(), 1, "{explain}");
    let found = layer.verify(&x).unwrap();
    assert!(found.is_right(), "{found}");
}
