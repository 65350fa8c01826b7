//! Bags of embeddings, unpooling, grids of samples, random draws.

use super::{Host, assert_is, assert_near, ints, read};
use kiln::{
    BagMode, Bags, DType, GridMode, GridPadding, GridSample, InterpolateMode, InterpolateSize,
    Multinomial, Pool, Tensor, Unpool, manual_seed, normal,
};
use kiln_ir::fuzz::Rng;

#[test]
fn bags_sum_average_and_take_the_largest() {
    let mut rng = Rng::new(1);
    let weight = Host::quarters(&mut rng, &[6, 3]);
    let indices: Vec<i64> = (0..9).map(|_| rng.range(0, 5)).collect();
    let offsets = [0i64, 4, 4, 7];
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let w = weight.tensor(dtype);
        for mode in [BagMode::Sum, BagMode::Mean, BagMode::Max] {
            for padding in [None, Some(indices[1])] {
                let mut expected = vec![];
                for (n, &start) in offsets.iter().enumerate() {
                    let end = offsets.get(n + 1).copied().unwrap_or(9);
                    let bag = &indices[start as usize..end as usize];
                    let bag: Vec<i64> = bag
                        .iter()
                        .copied()
                        .filter(|i| Some(*i) != padding)
                        .collect();
                    for c in 0..3 {
                        let column = bag.iter().map(|i| weight.at(&[*i as usize, c]));
                        expected.push(match mode {
                            _ if bag.is_empty() => 0.0,
                            BagMode::Sum => column.sum(),
                            BagMode::Mean => column.sum::<f64>() / bag.len() as f64,
                            BagMode::Max => column.fold(f64::NEG_INFINITY, f64::max),
                        });
                    }
                }
                let expected = Host::new(&[4, 3], expected);
                let i = ints(&[9], &indices);
                let o = ints(&[4], &offsets);
                let got = w.embedding_bag_with(
                    &i,
                    Bags::new().offsets(&o).mode(mode).padding_idx(padding),
                );
                assert_is(&got, dtype, &expected);
                let ends = ints(&[5], &[0, 4, 4, 7, 9]).to_dtype(DType::I32);
                let got = w.embedding_bag_with(
                    &i,
                    Bags::new()
                        .offsets(&ends)
                        .mode(mode)
                        .include_last_offset(true)
                        .padding_idx(padding),
                );
                assert_is(&got, dtype, &expected);
            }
        }
    }
}

#[test]
fn bags_are_rows_of_a_matrix_and_rows_have_weights() {
    let mut rng = Rng::new(2);
    let weight = Host::quarters(&mut rng, &[5, 2]).tensor(DType::F32);
    let indices = ints(&[2, 3], &[0, 1, 4, 2, 2, 3]);
    let factors = Host::quarters(&mut rng, &[2, 3]).tensor(DType::F32);
    let got = weight.embedding_bag_with(
        &indices,
        Bags::new().mode(BagMode::Sum).per_sample_weights(&factors),
    );
    let rows = weight.embedding(&indices) * factors.unsqueeze(2);
    assert_near(&read(&got), &read(&rows.sum(1)), DType::F32);
    let bag = |mode, offsets: Option<&Tensor>| {
        weight.embedding_bag_with(
            indices.reshape([6]),
            Bags::new()
                .offsets(offsets)
                .mode(mode)
                .per_sample_weights(&factors),
        )
    };
    assert!(
        bag(BagMode::Mean, Some(&ints(&[1], &[0])))
            .error()
            .is_some()
    );
    assert!(bag(BagMode::Sum, None).error().is_some());
    let late = weight.embedding_bag_with(
        indices.reshape([6]),
        Bags::new().offsets(ints(&[1], &[1])).mode(BagMode::Sum),
    );
    assert!(late.to_vec::<f32>().is_err(), "the first bag begins at 0");
}

#[test]
fn unpooling_undoes_pooling() {
    let mut rng = Rng::new(3);
    let x = Host::made(&[2, 3, 6, 9], || rng.unit() + 0.5).tensor(DType::F32);
    let (y, at) = x.max_pool2d_with_indices([2, 3]);
    let back = y.max_unpool2d(&at, [2, 3]);
    assert_eq!(back.shape().unwrap(), [2, 3, 6, 9]);
    // Every element is either its own window's largest or zero.
    let pooled = back.max_pool2d([2, 3]);
    assert_near(&read(&pooled), &read(&y), DType::F32);
    assert_near(
        &[read(&back.sum(()))[0]],
        &[read(&y.sum(()))[0]],
        DType::F32,
    );
    let larger = y.max_unpool2d(&at, Unpool::new([2, 3]).output_size([7, 9]));
    assert_eq!(larger.shape().unwrap(), [2, 3, 7, 9]);
    assert!(
        y.max_unpool2d(&at, Unpool::new([2, 3]).output_size([8, 9]))
            .error()
            .is_some()
    );
    assert!(y.max_unpool2d(at.narrow(0, 0, 1), [2, 3]).error().is_some());
    let (y, at) = x
        .select(0, 0)
        .select(0, 0)
        .max_pool1d_with_indices(Pool::new(2).stride(2));
    let back = y.max_unpool1d(&at, Unpool::new(2).stride(2).output_size([9]));
    assert_eq!(back.shape().unwrap(), [6, 9]);
    let volume = x.unsqueeze(1);
    let (y, at) = volume.max_pool3d_with_indices(Pool::new(3).stride(3));
    assert_eq!(
        y.max_unpool3d(&at, Unpool::new(3).stride(3))
            .shape()
            .unwrap(),
        [2, 1, 3, 6, 9]
    );
}

/// A sample of one `[H, W]` plane by the definition.
struct Plane<'a> {
    image: &'a Host,
    plane: [usize; 2],
    padding: GridPadding,
    corners: bool,
}

impl Plane<'_> {
    fn element(&self, y: f64, x: f64) -> f64 {
        let (h, w) = (self.image.shape[2] as f64, self.image.shape[3] as f64);
        if y < 0.0 || y > h - 1.0 || x < 0.0 || x > w - 1.0 {
            return 0.0;
        }
        let [n, c] = self.plane;
        self.image.at(&[n, c, y as usize, x as usize])
    }

    fn place(&self, c: f64, size: f64) -> f64 {
        match self.corners {
            true => (c + 1.0) / 2.0 * (size - 1.0),
            false => ((c + 1.0) * size - 1.0) / 2.0,
        }
    }

    fn padded(&self, at: f64, size: f64) -> f64 {
        let at = match (self.padding, self.corners) {
            (GridPadding::Zeros, _) => return at,
            (GridPadding::Border, _) => at,
            (GridPadding::Reflection, true) => mirrored(at, 0.0, size - 1.0),
            (GridPadding::Reflection, false) => mirrored(at, -0.5, size - 0.5),
        };
        at.clamp(0.0, size - 1.0)
    }

    fn sample(&self, gx: f64, gy: f64, mode: GridMode) -> f64 {
        let (h, w) = (self.image.shape[2] as f64, self.image.shape[3] as f64);
        let (y, x) = (self.place(gy, h), self.place(gx, w));
        if mode == GridMode::Bicubic {
            let weight = |d: f64| {
                let (d, a) = (d.abs(), -0.75);
                match d {
                    d if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
                    d if d < 2.0 => a * (((d - 5.0) * d + 8.0) * d - 4.0),
                    _ => 0.0,
                }
            };
            let mut sum = 0.0;
            for i in -1..3 {
                for j in -1..3 {
                    let (r, c) = (y.floor() + i as f64, x.floor() + j as f64);
                    let v = self.element(self.padded(r, h), self.padded(c, w));
                    sum += v * weight(y - r) * weight(x - c);
                }
            }
            return sum;
        }
        let (y, x) = (self.padded(y, h), self.padded(x, w));
        if mode == GridMode::Nearest {
            return self.element(y.round_ties_even(), x.round_ties_even());
        }
        let (v, u) = (y - y.floor(), x - x.floor());
        let at = |i: f64, j: f64| self.element(y.floor() + i, x.floor() + j);
        at(0., 0.) * (1. - v) * (1. - u)
            + at(0., 1.) * (1. - v) * u
            + at(1., 0.) * v * (1. - u)
            + at(1., 1.) * v * u
    }
}

/// Reflects a coordinate at both ends until it is inside.
fn mirrored(mut at: f64, low: f64, high: f64) -> f64 {
    if low == high {
        return 0.0;
    }
    while at < low || at > high {
        at = if at < low {
            2.0 * low - at
        } else {
            2.0 * high - at
        };
    }
    at
}

#[test]
fn grids_sample_in_every_mode_and_padding() {
    let mut rng = Rng::new(4);
    for shape in [[2, 3, 4, 5], [1, 1, 1, 3]] {
        let image = Host::quarters(&mut rng, &shape);
        let grid = Host::made(&[shape[0], 3, 7, 2], || rng.unit() * 5.0 - 2.5);
        for mode in [GridMode::Bilinear, GridMode::Nearest, GridMode::Bicubic] {
            for padding in [
                GridPadding::Zeros,
                GridPadding::Border,
                GridPadding::Reflection,
            ] {
                for corners in [false, true] {
                    let out = [shape[0], shape[1], 3, 7];
                    let value = |at: &Vec<usize>| {
                        let plane = Plane {
                            image: &image,
                            plane: [at[0], at[1]],
                            padding,
                            corners,
                        };
                        let g = |k| grid.at(&[at[0], at[2], at[3], k]);
                        plane.sample(g(0), g(1), mode)
                    };
                    let expected = super::indices(&out).iter().map(value).collect();
                    let (i, g) = (image.tensor(DType::F64), grid.tensor(DType::F64));
                    let got = i.grid_sample_with(
                        &g,
                        GridSample::new()
                            .mode(mode)
                            .padding_mode(padding)
                            .align_corners(corners),
                    );
                    assert_is(&got, DType::F64, &Host::new(&out, expected));
                }
            }
        }
    }
}

#[test]
fn places_that_are_not_numbers_are_the_first_element_unless_zeros_surround_the_image() {
    let image = Tensor::from([1f32, 2.0, 3.0, 4.0]).reshape([1, 1, 2, 2]);
    // Above the image's lower left corner, with NaN in either coordinate.
    let grid = Tensor::from([f32::NAN, 1.0, -1.0, f32::NAN, f32::NAN, f32::NAN]);
    let grid = grid.reshape([1, 1, 3, 2]);
    let volume = image.unsqueeze(2);
    let middle = Tensor::zeros([1, 1, 3, 1], DType::F32);
    let places = kiln::cat(&[&grid, &middle], 3).unsqueeze(1);
    let (first, none, nan) = ([3.0, 1.0, 1.0], [0.0; 3], [f32::NAN; 3]);
    for corners in [false, true] {
        for (mode, padding, wanted) in [
            (GridMode::Bilinear, GridPadding::Border, first),
            (GridMode::Bilinear, GridPadding::Reflection, first),
            (GridMode::Bilinear, GridPadding::Zeros, nan),
            (GridMode::Nearest, GridPadding::Border, first),
            (GridMode::Nearest, GridPadding::Reflection, first),
            (GridMode::Nearest, GridPadding::Zeros, none),
            (GridMode::Bicubic, GridPadding::Border, nan),
            (GridMode::Bicubic, GridPadding::Reflection, nan),
            (GridMode::Bicubic, GridPadding::Zeros, nan),
        ] {
            let options = GridSample::new().mode(mode).padding_mode(padding);
            let options = options.align_corners(corners);
            assert_near(
                &read(&image.grid_sample_with(&grid, options.clone())),
                &wanted.map(f64::from),
                DType::F32,
            );
            if mode != GridMode::Bicubic {
                let deep = volume.grid_sample_with(&places, options);
                assert_near(&read(&deep), &wanted.map(f64::from), DType::F32);
            }
        }
    }
}

#[test]
fn a_factor_that_leaves_a_size_copies_where_pytorch_does() {
    use InterpolateMode::{Linear, Nearest, NearestExact};
    let line = [0.0, f64::INFINITY, 2.0, 3.0];
    let linear = Linear {
        align_corners: false,
    };
    let corners = Linear {
        align_corners: true,
    };
    let cases: &[(&[usize], f64, InterpolateMode, &[usize])] = &[
        (&[4], 1.2, linear, &[0, 1, 2, 3]),
        (&[4], 1.2, corners, &[0, 1, 2, 3]),
        (&[1, 4], 1.2, linear, &[0, 1, 2, 3]),
        (&[1, 1, 4], 1.2, linear, &[0, 1, 2, 3]),
        (&[1, 4], 1.2, Nearest, &[0, 1, 2, 3]),
        (&[1, 4], 2.2, Nearest, &[0, 0, 1, 1, 2, 2, 3, 3]),
        // For tensors other than images, the nearest indices follow the steps of the factor.
        (&[4], 1.2, Nearest, &[0, 0, 1, 2]),
        (&[1, 1, 4], 1.2, Nearest, &[0, 0, 1, 2]),
        (&[4], 2.2, Nearest, &[0, 0, 0, 1, 1, 2, 2, 3]),
        (&[1, 4], 1.2, NearestExact, &[0, 1, 2, 2]),
        (&[1, 4], 2.6, Nearest, &[0, 0, 0, 1, 1, 1, 2, 2, 3, 3]),
    ];
    for (spatial, factor, mode, wanted) in cases {
        let x = Tensor::from(line).reshape([&[1, 1], *spatial].concat());
        let mut factors = vec![1.0; spatial.len()];
        factors[spatial.len() - 1] = *factor;
        let y = x.interpolate(InterpolateSize::ScaleFactor(factors), *mode);
        let wanted: Vec<f64> = wanted.iter().map(|i| line[*i]).collect();
        assert_eq!(read(&y), wanted, "{spatial:?} by {factor}, {mode:?}");
    }
}

#[test]
fn volumes_are_sampled_like_the_images_they_consist_of() {
    let mut rng = Rng::new(5);
    let image = Host::quarters(&mut rng, &[1, 2, 4, 5]).tensor(DType::F64);
    let grid = Host::made(&[1, 3, 3, 2], || rng.unit() * 2.4 - 1.2).tensor(DType::F64);
    let volume = image.unsqueeze(2).expand([1, 2, 3, 4, 5]);
    let middle = Tensor::zeros([1, 3, 3, 1], DType::F64);
    let places = kiln::cat(&[&grid, &middle], 3).unsqueeze(1);
    for mode in [GridMode::Bilinear, GridMode::Nearest] {
        let flat = image.grid_sample_with(&grid, GridSample::new().mode(mode).align_corners(true));
        let deep =
            volume.grid_sample_with(&places, GridSample::new().mode(mode).align_corners(true));
        assert_near(&read(&deep), &read(&flat), DType::F64);
    }
    let cubic = volume.grid_sample_with(
        &places,
        GridSample::new()
            .mode(GridMode::Bicubic)
            .align_corners(true),
    );
    assert!(cubic.error().is_some());
}

#[test]
fn draws_follow_their_probabilities() {
    manual_seed(12);
    let order = Tensor::randperm(101).to_vec::<i64>().unwrap();
    assert_ne!(order, (0..101).collect::<Vec<i64>>());
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..101).collect::<Vec<i64>>());
    assert_eq!(Tensor::randperm(0).shape().unwrap(), [0]);

    let p = Tensor::from_slice(&[0.0f32, 1.0, 0.0, 3.0], [4]);
    let draws = p
        .multinomial(Multinomial::new(4000).replacement(true))
        .to_vec::<i64>()
        .unwrap();
    let count = |i: i64| draws.iter().filter(|d| **d == i).count();
    assert_eq!((count(0), count(2)), (0, 0));
    // Five standard deviations of 4000 draws.
    assert!(count(1).abs_diff(1000) < 140, "{}", count(1));
    let both = kiln::stack(&[&p, &p], 0).multinomial(2);
    let both = both.to_vec::<i64>().unwrap();
    for row in both.chunks(2) {
        assert!(row == [1, 3] || row == [3, 1], "{row:?}");
    }
    assert!(p.multinomial(5).error().is_some());
    let zeros = Tensor::zeros([3], DType::F32).multinomial(Multinomial::new(1).replacement(true));
    assert!(zeros.to_vec::<i64>().is_err(), "no weight at all");

    let coins = Tensor::full([5000], 0.25, DType::F32).bernoulli();
    let heads = coins.sum(()).to_vec::<f32>().unwrap()[0];
    assert!((heads - 1250.0).abs() < 155.0, "{heads}");
    assert_near(&read(&p.bernoulli_with(1.0)), &[1.0; 4], DType::F32);
    assert_near(&read(&p.bernoulli_with(0.0)), &[0.0; 4], DType::F32);

    let mean = Tensor::from_slice(&[-3.0f64, 5.0], [2, 1]).expand([2, 4000]);
    let z = normal(&mean, 0.5);
    assert_eq!((z.dtype(), z.shape().unwrap()), (DType::F64, vec![2, 4000]));
    let (var, mean) = z.var_mean(1);
    for (m, e) in mean.to_vec::<f64>().unwrap().iter().zip([-3.0, 5.0]) {
        assert!((m - e).abs() < 0.04, "{m}");
    }
    assert!(
        var.to_vec::<f64>()
            .unwrap()
            .iter()
            .all(|v| (v - 0.25).abs() < 0.03)
    );
}
