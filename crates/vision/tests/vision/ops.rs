//! Boxes, suppression, the focal loss and region features against torchvision's documented values and plain loops.

use kiln_tensor::{DType, Reduction, Result, Tensor, gradcheck, manual_seed};
use kiln_vision::ops::*;

fn near(got: &Tensor, want: &[f32]) -> Result<()> {
    let got = got.to_vec::<f32>()?;
    assert_eq!(got.len(), want.len());
    let same = got.iter().zip(want).all(|(a, b)| (a - b).abs() <= 1e-4);
    assert!(same, "{got:?}, not {want:?}");
    Ok(())
}

/// Boxes with corners in a square of this size.
fn random_boxes(count: i64, size: f64) -> Tensor {
    let corner = Tensor::rand([count, 2], DType::F32) * size;
    let sides = Tensor::rand([count, 2], DType::F32) * (size / 2.0);
    kiln_tensor::cat([&corner, &(&corner + sides)], 1)
}

#[test]
fn overlaps_are_those_of_torchvision() -> Result<()> {
    let boxes = Tensor::from([[0i64, 0, 100, 100], [0, 0, 50, 50], [200, 200, 300, 300]]);
    near(
        &box_iou(&boxes, &boxes)?,
        &[1.0, 0.25, 0.0, 0.25, 1.0, 0.0, 0.0, 0.0, 1.0],
    )?;
    let (a, b) = (-0.7778, -0.8611);
    near(
        &generalized_box_iou(&boxes, &boxes)?,
        &[1.0, 0.25, a, 0.25, 1.0, b, a, b, 1.0],
    )?;
    assert_eq!(box_area(&boxes)?.to_vec::<i64>()?, [10_000, 2_500, 10_000]);
    let one = Tensor::from([
        [-1.0f32, -1.0, 1.0, 1.0],
        [-1.0, -1.0, 1.0, 1.0],
        [0.0, 0.0, 1.0, 1.0],
        [0.0, 0.0, 1.0, 1.0],
    ]);
    let other = Tensor::from([
        [-1.0f32, -1.0, 1.0, 1.0],
        [0.0, 0.0, 1.0, 1.0],
        [0.0, 1.0, 1.0, 2.0],
        [1.0, 1.0, 2.0, 2.0],
    ]);
    near(
        &generalized_box_iou_loss(&one, &other, Reduction::None)?,
        &[0.0, 0.75, 1.0, 1.5],
    )?;
    near(
        &generalized_box_iou_loss(&one, &other, Reduction::Sum)?,
        &[3.25],
    )?;
    let none = Tensor::zeros([0, 4], DType::F32);
    assert_eq!(box_iou(&none, &one)?.shape()?, [0, 4]);
    Ok(())
}

#[test]
fn formats_convert_into_each_other() -> Result<()> {
    let forms = [
        (
            BoxFormat::Xyxy,
            [[10.0f32, 15.0, 30.0, 35.0], [23.0, 35.0, 93.0, 95.0]],
        ),
        (
            BoxFormat::Xywh,
            [[10.0, 15.0, 20.0, 20.0], [23.0, 35.0, 70.0, 60.0]],
        ),
        (
            BoxFormat::Cxcywh,
            [[20.0, 25.0, 20.0, 20.0], [58.0, 65.0, 70.0, 60.0]],
        ),
    ];
    for (from, boxes) in forms {
        for (to, want) in forms {
            let converted = box_convert(&Tensor::from(boxes), from, to)?;
            assert_eq!(
                converted.to_vec::<f32>()?,
                want.concat(),
                "{from:?} to {to:?}"
            );
        }
    }
    let clipped = clip_boxes_to_image(&Tensor::from([[-3.0f32, 2.0, 50.0, 60.0]]), (40, 30))?;
    assert_eq!(clipped.to_vec::<f32>()?, [0.0, 2.0, 30.0, 40.0]);
    let kept = remove_small_boxes(
        &Tensor::from([[0.0f32, 0.0, 2.0, 9.0], [0.0, 0.0, 3.0, 3.0]]),
        3.0,
    )?;
    assert_eq!(kept.to_vec::<i64>()?, [1]);
    Ok(())
}

#[test]
fn suppression_keeps_the_best_boxes_that_overlap_little() -> Result<()> {
    manual_seed(11);
    let (boxes, scores) = (random_boxes(60, 20.0), Tensor::rand([60], DType::F32));
    let classes = Tensor::randint(0, 2, [60]);
    let overlap = box_iou(&boxes, &boxes)?.to_vec::<f32>()?;
    let (score, class) = (scores.to_vec::<f32>()?, classes.to_vec::<i64>()?);
    for batched in [false, true] {
        let kept = match batched {
            true => batched_nms(&boxes, &scores, &classes, 0.3)?,
            false => nms(&boxes, &scores, 0.3)?,
        };
        let kept: Vec<usize> = kept
            .to_vec::<i64>()?
            .into_iter()
            .map(|n| n as usize)
            .collect();
        assert!(kept.len() > 1 && kept.len() < 60);
        assert!(kept.windows(2).all(|w| score[w[0]] >= score[w[1]]));
        for n in 0..60 {
            let covered = kept.iter().any(|&k| {
                let rival = !batched || class[k] == class[n];
                k != n && score[k] > score[n] && rival && overlap[k * 60 + n] > 0.3
            });
            assert_eq!(covered, !kept.contains(&n), "box {n}");
        }
    }
    let none = nms(&boxes.narrow(0, 0, 0), &scores.narrow(0, 0, 0), 0.5)?;
    assert_eq!(none.shape()?, [0]);
    Ok(())
}

#[test]
fn focal_loss_weighs_hard_examples() -> Result<()> {
    let scores = [-3.0f64, -0.5, 0.0, 0.7, 4.0];
    let targets = [1.0f64, 0.0, 0.3, 1.0, 0.0];
    let want = scores.iter().zip(targets).map(|(x, t)| {
        let p = 1.0 / (1.0 + (-x).exp());
        let entropy = -(t * p.ln() + (1.0 - t) * (1.0 - p).ln());
        let right = p * t + (1.0 - p) * (1.0 - t);
        (0.25 * t + 0.75 * (1.0 - t)) * entropy * (1.0 - right).powi(2)
    });
    let want: Vec<f64> = want.collect();
    let loss =
        sigmoid_focal_loss(&Tensor::from(scores), &Tensor::from(targets))?.to_vec::<f64>()?;
    let same = loss.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(same, "{loss:?}, not {want:?}");
    Ok(())
}

/// torchvision's loops over one region of one channel.
fn aligned(image: &[f64], (h, w): (usize, usize), region: &[f64], options: &RoiAlign) -> Vec<f64> {
    let offset = if options.aligned { 0.5 } else { 0.0 };
    let edge = |n: usize| region[n] * options.spatial_scale - offset;
    let (left, top) = (edge(1), edge(2));
    let (mut width, mut height) = (edge(3) - left, edge(4) - top);
    if !options.aligned {
        (width, height) = (width.max(1.0), height.max(1.0));
    }
    let (rows, columns) = options.output_size;
    let (cell_h, cell_w) = (height / rows as f64, width / columns as f64);
    let samples = |cell: f64| match options.sampling_ratio.0 {
        0 => cell.ceil().max(0.0) as usize,
        n => n,
    };
    let (down, across) = (samples(cell_h), samples(cell_w));
    let at = |y: f64, x: f64| {
        if y < -1.0 || y > h as f64 || x < -1.0 || x > w as f64 {
            return 0.0;
        }
        let end = |v: f64, size: usize| {
            let v = v.clamp(0.0, size as f64 - 1.0);
            (
                v.floor() as usize,
                (v.floor() as usize + 1).min(size - 1),
                v.fract(),
            )
        };
        let ((y0, y1, fy), (x0, x1, fx)) = (end(y, h), end(x, w));
        let row = |y: usize| image[y * w + x0] * (1.0 - fx) + image[y * w + x1] * fx;
        row(y0) * (1.0 - fy) + row(y1) * fy
    };
    let mut out = Vec::new();
    for row in 0..rows {
        for column in 0..columns {
            let mut sum = 0.0;
            for i in 0..down {
                for j in 0..across {
                    let y = top + (row as f64 + (i as f64 + 0.5) / down as f64) * cell_h;
                    let x = left + (column as f64 + (j as f64 + 0.5) / across as f64) * cell_w;
                    sum += at(y, x);
                }
            }
            out.push(sum / (down * across).max(1) as f64);
        }
    }
    out
}

#[test]
fn region_features_are_means_of_samples() -> Result<()> {
    manual_seed(13);
    let (h, w) = (7, 9);
    let input = Tensor::rand([2, 3, h, w], DType::F64);
    let regions = Tensor::from([
        [0.0f64, 1.0, 2.0, 9.0, 7.5],
        [1.0, -6.0, -3.0, 30.0, 12.0],
        [1.0, 4.0, 4.0, 4.2, 4.1],
        [0.0, 5.0, 5.0, 5.0, 5.0],
        [0.0, 40.0, 0.0, 60.0, 9.0],
    ]);
    let (images, boxes) = (input.to_vec::<f64>()?, regions.to_vec::<f64>()?);
    for ratio in [0usize, 1, 3] {
        for on_centres in [false, true] {
            let options = RoiAlign::new((2, 3))
                .spatial_scale(0.5)
                .sampling_ratio(ratio)
                .aligned(on_centres);
            let got = roi_align(&input, &regions, options.clone())?;
            assert_eq!(got.shape()?, [5, 3, 2, 3]);
            let mut want = Vec::new();
            for region in boxes.chunks(5) {
                for channel in 0..3 {
                    let start = (region[0] as usize * 3 + channel) * h * w;
                    want.extend(aligned(
                        &images[start..start + h * w],
                        (h, w),
                        region,
                        &options,
                    ));
                }
            }
            let got = got.to_vec::<f64>()?;
            let wrong = got
                .iter()
                .zip(&want)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f64::max);
            assert!(
                wrong < 1e-12 && got.iter().all(|v| v.is_finite()),
                "{wrong} with {options:?}"
            );
        }
    }
    let align = |x: Tensor| roi_align(&x, &regions, RoiAlign::new((2, 2)).sampling_ratio(2));
    gradcheck(align, &input)?;
    let none = roi_align(&input, &regions.narrow(0, 0, 0), RoiAlign::new((2, 2)))?;
    assert_eq!(none.shape()?, [0, 3, 2, 2]);
    Ok(())
}

#[test]
fn wrong_shapes_are_named() -> Result<()> {
    let (boxes, scores) = (random_boxes(3, 9.0), Tensor::rand([3], DType::F32));
    let flat = box_iou(&boxes.flatten(()), &boxes).unwrap_err().to_string();
    assert!(
        flat.contains("box_iou: boxes1 has the shape [n, 4], not [12]"),
        "{flat}"
    );
    let short = nms(&boxes, &scores.narrow(0, 0, 2), 0.5)
        .unwrap_err()
        .to_string();
    assert!(
        short.contains("scores has the shape [3]") && short.contains("ops.rs"),
        "{short}"
    );
    let float = batched_nms(&boxes, &scores, &scores, 0.5).unwrap_err();
    let float = float.to_string();
    assert!(float.contains("idxs holds integers, not f32"), "{float}");
    assert!("xxyy".parse::<BoxFormat>().is_err());
    let wide = roi_align(
        &Tensor::rand([1, 2, 3, 3], DType::F32),
        &boxes,
        RoiAlign::new((2, 2)),
    );
    assert!(wide.unwrap_err().to_string().contains("[n, 5]"));
    Ok(())
}
