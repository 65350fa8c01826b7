//! Lane-by-lane reductions: windows over padded images, and sums of columns.

use super::*;

/// True if an access of an emitted function is visited run by run.
fn visits_runs(case: &Case, level: Features) -> bool {
    let bound = bind(&case.program, &[], &case.lens).unwrap();
    let linked = link_with(&bound, level, true).unwrap();
    linked.emitted.iter().any(|p| !p.runs.is_empty())
}

/// One spatial axis of a window over a padded image.
#[derive(Copy, Clone, Debug)]
struct Axis {
    size: i64,
    window: i64,
    stride: i64,
    dilation: i64,
    pad: i64,
    out: i64,
}

impl Axis {
    fn random(size: i64, r: &mut Random) -> Axis {
        let (window, dilation) = (1 + r.below(3) as i64, 1 + r.below(2) as i64);
        // A negative padding crops the edge.
        let (stride, pad) = (r.one_of(&[1, 1, 2]), r.below(5) as i64 - 1);
        let span = (window - 1) * dilation + 1;
        // Windows may be entirely outside the image.
        let out = ((size + 2 * pad - span) / stride).max(0) + 1 + r.below(2) as i64;
        Axis {
            size,
            window,
            stride,
            dilation,
            pad,
            out,
        }
    }
}

/// Returns a reduction of windows over a padded image. The innermost axis is that of the channels, or of the columns.
fn windows(nhwc: bool, dtype: DType, run: i64, r: &mut Random) -> Case {
    let (images, channels) = (1 + r.below(2) as i64, if nhwc { run } else { 2 });
    let rows = Axis::random(1 + r.below(6) as i64, r);
    let columns = Axis::random(if nhwc { 1 + r.below(6) as i64 } else { run }, r);
    let (height, width) = (rows.size, columns.size);
    // The strides of image, channel, row and column.
    let strides = |h: i64, w: i64| match nhwc {
        true => (h * w * channels, 1, w * channels, channels),
        false => (h * w * channels, h * w, w, 1),
    };
    // The axes in the order of the result, then the window's.
    let order = |image: i64, channel: i64, row: i64, column: i64| match nhwc {
        true => [image, row, column, channel],
        false => [image, channel, row, column],
    };
    let dims = |outer: [i64; 4], inner: [i64; 2]| -> Vec<kiln_base::Dim> {
        outer.into_iter().chain(inner).map(|s| s.into()).collect()
    };
    let (image, channel, row, column) = strides(height, width);
    let bound = |axis: Axis, outer: [i64; 4], inner: [i64; 2]| Bound {
        offset: (-axis.pad).into(),
        strides: dims(outer, inner),
        extent: axis.size.into(),
    };
    let fill = match r.below(3) {
        _ if dtype == DType::Bool => Scalar::Bool(r.below(2) == 0),
        0 => Scalar::Int(0),
        1 if dtype.compute().is_float() => Scalar::Float(f64::NEG_INFINITY),
        _ => Scalar::Int(100),
    };
    let load = Access {
        arg: 0,
        offset: (-rows.pad * row - columns.pad * column).into(),
        strides: dims(
            order(image, channel, row * rows.stride, column * columns.stride),
            [row * rows.dilation, column * columns.dilation],
        ),
        bounds: vec![
            bound(rows, order(0, 0, rows.stride, 0), [rows.dilation, 0]),
            bound(
                columns,
                order(0, 0, 0, columns.stride),
                [0, columns.dilation],
            ),
        ],
        fill,
    };
    let (image, channel, row, column) = strides(rows.out, columns.out);
    let store = Access {
        strides: dims(order(image, channel, row, column), [0, 0]),
        ..access(1, 0, &[])
    };
    let axes = order(images, channels, rows.out, columns.out);
    let op = match dtype {
        DType::Bool => Reduction::Max,
        _ => r.one_of(&[Reduction::Max, Reduction::Min, Reduction::Sum]),
    };
    let (acc, a) = (R[1], R[0]);
    let load_inst = Inst::Load { dst: a, access: 0 };
    let store_inst = |src| Inst::Store { access: 1, src };
    let arg = |written| Arg { dtype, written };
    let is_padding = rows.window * columns.window == 1;
    let stages = match is_padding {
        // Without a window, the image is only padded.
        true => vec![stage(false, vec![load_inst, store_inst(a)])],
        false => vec![
            stage(true, vec![load_inst, Inst::Reduce { op, acc, a }]),
            stage(false, vec![store_inst(acc)]),
        ],
    };
    let window = [rows.window, columns.window];
    let inner: &[i64] = if is_padding { &[] } else { &window };
    let mut accesses = vec![load, store];
    for a in &mut accesses {
        a.strides.truncate(4 + inner.len());
        for b in &mut a.bounds {
            b.strides.truncate(4 + inner.len());
        }
    }
    Case {
        lens: vec![
            images * channels * height * width,
            images * channels * rows.out * columns.out,
        ],
        program: TileProgram {
            axes: axes.into_iter().map(|e| e.into()).collect(),
            inner: inner.iter().map(|e| (*e).into()).collect(),
            accesses,
            args: vec![arg(false), arg(true)],
            registers: vec![dtype.compute(); 2],
            stages,
            sites: 1,
            ..TileProgram::default()
        },
    }
}

#[test]
fn windows_over_padded_images() {
    let mut r = Random(11);
    let mut visited = 0;
    for dtype in [
        DType::F32,
        DType::F16,
        DType::I64,
        DType::Bool,
        DType::I8,
        DType::U32,
    ] {
        for run in RUNS {
            for i in 0..24 {
                let nhwc = i % 2 == 0;
                let mut case = windows(nhwc, dtype, run, &mut r);
                case.program.sizes.stream = [None, Some(true)][r.below(2)];
                let label = format!("{dtype:?} in runs of {run}, channels last: {nhwc}, {i}");
                compare(&case, &label, &mut r);
                if nhwc && Features::AVX2.is_supported() {
                    let bounds = &case.program.accesses[0].bounds;
                    let visits = visits_runs(&case, Features::AVX2);
                    assert!(visits || run < 128, "{label}: {bounds:?}");
                    visited += usize::from(visits);
                }
            }
        }
    }
    assert!(
        visited > 300 || !Features::AVX2.is_supported(),
        "{visited} with runs"
    );
}

/// Returns reductions of the columns of `x + bias`, which stores the terms too. Two axes form the rows.
fn columns(dtype: DType, [blocks, rows]: [i64; 2], n: i64, r: &mut Random) -> Case {
    let ty = dtype.compute();
    // Columns are contiguous, or rows are; in the second case their terms are stored one by one.
    let transposed = r.below(4) == 0;
    let stored = match transposed {
        true => [blocks * rows, rows, 1],
        false => [1, rows * n, n],
    };
    // The bias of all columns may differ from row to row.
    let is_uniform = r.below(2) == 0;
    let bias = if is_uniform { [0, rows, 1] } else { [1, 0, 0] };
    let [x, b, term, acc, _] = R;
    let op = r.one_of(&[Reduction::Sum, Reduction::Max, Reduction::Min]);
    let code = vec![
        Inst::Load { dst: x, access: 0 },
        Inst::Load { dst: b, access: 1 },
        Inst::Binary {
            op: Binary::Add,
            dst: term,
            a: x,
            b,
            site: 0,
        },
        Inst::Reduce { op, acc, a: term },
        Inst::Store {
            access: 2,
            src: term,
        },
    ];
    let arg = |written| Arg { dtype, written };
    let len = blocks * rows * n;
    Case {
        lens: vec![len, n.max(blocks * rows), len, n],
        program: TileProgram {
            axes: vec![n.into()],
            inner: vec![blocks.into(), rows.into()],
            accesses: vec![
                access(0, 0, &[1, rows * n, n]),
                access(1, 0, &bias),
                access(2, 0, &stored),
                access(3, 0, &[1, 0, 0]),
            ],
            args: vec![arg(false), arg(false), arg(true), arg(true)],
            registers: vec![ty; 4],
            stages: vec![
                stage(true, code),
                stage(
                    false,
                    vec![Inst::Store {
                        access: 3,
                        src: acc,
                    }],
                ),
            ],
            sites: 1,
            ..TileProgram::default()
        },
    }
}

#[test]
fn sums_of_columns_over_many_steps() {
    let mut r = Random(91);
    let mut stepped = 0;
    for dtype in [DType::F32, DType::F64, DType::I32, DType::I64, DType::F16] {
        for n in [1, 7, 16, 33, 64, 100, 515] {
            for steps in [[1, 1], [1, 2], [1, 255], [256, 1], [1, 257], [3, 200]] {
                let case = columns(dtype, steps, n, &mut r);
                compare(&case, &format!("{dtype} {n} {steps:?}"), &mut r);
                for level in [Features::AVX2, Features::AVX512]
                    .into_iter()
                    .filter(|l| l.is_supported())
                {
                    let bound = bind(&case.program, &[], &case.lens).unwrap();
                    let linked = link_with(&bound, level, true).unwrap();
                    stepped += usize::from(linked.stages.iter().any(|s| s.steps));
                }
            }
        }
    }
    assert!(stepped > 100, "{stepped} programs");
}
