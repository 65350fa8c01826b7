//! Images with channels last: the same results, the same kernels, and the report about them.

use crate::cuda;
use kiln::nn::optim::{AdamW, Optimizer};
use kiln::nn::{BatchNorm2d, Conv2d, Forward, Kernel, MaxPool2d, Module};
use kiln::{
    CompileOptions, Compiled, DType, Device, Layout, Pool, Result, Spec, Tensor, cat, compile_with,
    keep, with_seed,
};

const LAYOUTS: [Layout; 3] = [Layout::Auto, Layout::ChannelsFirst, Layout::ChannelsLast];

/// Layers of every kind that has images as input and output.
#[derive(Module)]
struct Layers {
    stem: Conv2d,
    norm: BatchNorm2d,
    expand: Conv2d,
    depthwise: Conv2d,
    squeeze: Conv2d,
    excite: Conv2d,
    project: Conv2d,
    grouped: Conv2d,
    dilated: Conv2d,
}

impl Layers {
    fn new() -> Result<Layers> {
        let kernel = |size: usize| Kernel::new(size).padding(size / 2);
        let layers = Layers {
            stem: Conv2d::new(3, 10, kernel(3).stride(2))?,
            norm: BatchNorm2d::new(10)?,
            expand: Conv2d::new(10, 36, 1)?,
            depthwise: Conv2d::new(36, 36, kernel(5).groups(36))?,
            squeeze: Conv2d::new(36, 9, 1)?,
            excite: Conv2d::new(9, 36, 1)?,
            project: Conv2d::new(36, 10, 1)?,
            grouped: Conv2d::new(20, 12, kernel(3).groups(2).stride(2))?,
            dilated: Conv2d::new(12, 7, kernel(3).dilation(2))?,
        };
        layers.norm.eval();
        Ok(layers)
    }
}

impl Forward for Layers {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let x = self.norm.call(self.stem.call(x)).hardswish();
        let y = self.depthwise.call(self.expand.call(&x).relu()).hardswish();
        let scale = self.squeeze.call(y.mean(keep([2, 3]))).relu();
        let scale = self.excite.call(&scale).hardsigmoid();
        let y = self.project.call(&(y * scale)) + &x;
        let y = cat(&[&y, &x], 1);
        let y = self
            .grouped
            .call(MaxPool2d::new(Pool::new(3).stride(1).padding(1))?.call(&y));
        Ok(self.dilated.call(y.relu()))
    }
}

fn compiled(layers: &Layers, x: &Tensor, layout: Layout) -> Result<Compiled<Tensor, Vec<Tensor>>> {
    let options = CompileOptions {
        layout,
        ..CompileOptions::default()
    };
    compile_with(x, &options, |x| {
        let y = layers.call(&x);
        // One result is an image, the other one is a reshaped image.
        vec![y.clone(), (&y * 2.0).flatten((1, 3)).softmax(1)]
    })
}

/// Checks all kernels; returns the numbers of kernels that run and that are prepared, by layout.
fn check(device: Device) -> Result<Vec<Vec<(usize, usize)>>> {
    let layers = Layers::new()?;
    layers.to(device)?;
    let mut all = Vec::new();
    for (batch, size) in [(1, 29), (3, 17)] {
        let x = Tensor::randn([batch, 3, size, size + 4], DType::F32).to(device);
        let mut kernels = Vec::new();
        for layout in LAYOUTS {
            let f = compiled(&layers, &x, layout)?;
            let explain = f.explain();
            let found = f.verify(&x)?;
            assert!(found.is_right(), "{layout:?}: {found}\n{explain}");
            kernels.push((explain.kernels_run(), explain.kernels_prepared()));
            let report = &explain.layout;
            assert_eq!(report.convolutions, 8, "{explain}");
            assert!(
                report.cost <= report.first_cost.min(report.last_cost),
                "{report}"
            );
            match layout {
                Layout::ChannelsFirst => assert_eq!(report.channels_last, 0, "{report}"),
                // The last convolution writes a result of the program. On a GPU, the first one reads an input as it is.
                Layout::ChannelsLast => {
                    let pinned = if device == Device::Cpu { 1 } else { 2 };
                    assert!(report.channels_last + pinned >= 8, "{report}");
                }
                Layout::Auto => {}
            }
        }
        all.push(kernels);
    }
    Ok(all)
}

#[test]
fn every_kernel_is_right_in_every_layout() -> Result<()> {
    for kernels in check(Device::Cpu)? {
        assert!(kernels.iter().all(|k| *k == kernels[1]), "{kernels:?}");
    }
    Ok(())
}

/// Filters are copied once, so more work is prepared, but the same number of kernels runs.
#[test]
fn an_image_behind_a_reshape_is_read_as_it_lies() {
    let text = r#"graph {
  %0: i64[4536] = iota
  %1: f32[4536] = cast %0
  %2: f32[4536] = sin %1
  %3: f32[1, 24, 9, 21] = reshape %2
  %4: f32[24, 1, 3, 3] = input(index: 0, role: Data)
  %5: f32[1, 1, 9, 21] = conv_transpose(conv: (stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1), input: [9, 21]) %3, %4
  %6: f32[5, 24, 3, 3] = input(index: 1, role: Parameter)
  %7: f32[1, 5, 9, 21] = conv(stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1) %3, %6
  %8: f32[1, 5, 9, 21] = relu %7
  return %5, %8
}"#;
    let graph = kiln_ir::Graph::parse(text).unwrap();
    for layout in LAYOUTS {
        let options = CompileOptions {
            layout,
            ..CompileOptions::default()
        };
        kiln_testkit::programs::check(&graph, 0, &[options]).unwrap();
    }
}

#[test]
fn every_kernel_is_right_in_every_layout_on_a_gpu() -> Result<()> {
    let Some(gpu) = cuda::device() else {
        return Ok(());
    };
    for kernels in check(gpu)? {
        assert!(kernels.iter().all(|k| k.0 == kernels[1].0), "{kernels:?}");
    }
    Ok(())
}

/// Gradients have both layouts on a GPU too.
#[test]
fn training_on_a_gpu_is_the_same_in_every_layout() -> Result<()> {
    let Some(gpu) = cuda::device() else {
        return Ok(());
    };
    let train = |layout: Layout, device: Device| -> Result<Vec<f32>> {
        let layers = with_seed(5, Layers::new)?;
        layers.to(device)?;
        let mut optimizer = Optimizer::new(layers.parameters(), AdamW::new())?;
        let options = CompileOptions {
            layout,
            ..CompileOptions::default()
        };
        let spec = Spec::new(DType::F32, [2, 3, 17, 19]).on(device);
        let f = compile_with(spec, &options, |x| {
            optimizer.zero_grad();
            let loss = layers.call(&x).square().mean(());
            loss.backward()?;
            optimizer.step()?;
            Result::Ok(loss)
        })?;
        let report = &f.explain().layout;
        if (layout, device) == (Layout::ChannelsLast, gpu) {
            assert!(report.channels_last > 16, "{report}");
        }
        let x = with_seed(6, || Tensor::randn([2, 3, 17, 19], DType::F32)).to(device);
        (0..4).map(|_| f.run(&x)?.item()).collect()
    };
    let expected = train(Layout::ChannelsFirst, Device::Cpu)?;
    for layout in LAYOUTS {
        for (a, b) in train(layout, gpu)?.iter().zip(&expected) {
            assert!((a - b).abs() <= 1e-4 * b.abs(), "{layout:?}: {a} {b}");
        }
    }
    Ok(())
}

#[test]
fn a_wide_depthwise_network_has_channels_last_but_for_its_ends() -> Result<()> {
    let conv = |cin: usize, cout: usize, kernel: usize, groups: usize| {
        Conv2d::new(
            cin,
            cout,
            Kernel::new(kernel).padding(kernel / 2).groups(groups),
        )
    };
    let blocks: Vec<[Conv2d; 3]> = (0..3)
        .map(|_| {
            Ok([
                conv(96, 384, 1, 1)?,
                conv(384, 384, 5, 384)?,
                conv(384, 96, 1, 1)?,
            ])
        })
        .collect::<Result<_>>()?;
    let x = Tensor::randn([1, 96, 14, 14], DType::F32);
    let f = compile_with(&x, &CompileOptions::default(), |x| {
        let mut y = x.clone();
        for [expand, depthwise, project] in &blocks {
            let inner = depthwise.call(expand.call(&y).relu()).relu();
            y = project.call(&inner) + &y;
        }
        y.mean([2, 3])
    })?;
    let report = f.explain().layout.clone();
    assert_eq!(
        (report.convolutions, report.channels_last),
        (9, 9),
        "{report}"
    );
    // The image is read by the first convolution, and added to its block's result.
    assert_eq!(report.conversions.len(), 2, "{report}");
    let (text, page) = (f.explain().to_string(), f.explain().to_html());
    let kernels = &f.explain().kernels;
    for (c, copied) in f.explain().conversions.iter().zip([false, true]) {
        assert!(c.value.starts_with("input f32[1, 96, 14, 14]"), "{c}");
        assert_eq!(c.bytes.as_const(), Some(96 * 14 * 14 * 4));
        assert!(c.channels_last && c.kept && c.writer.is_none(), "{c}");
        assert!(kernels.iter().any(|k| k.name == c.reader), "{c}");
        assert_eq!(c.copied, copied, "{c}");
        assert!(
            text.contains(&c.to_string()) && page.contains(&c.to_string()),
            "{text}"
        );
    }
    assert!(
        text.contains("layout: 9 of 9 convolutions with channels last"),
        "{text}"
    );
    assert!(f.verify(&x)?.is_right());
    Ok(())
}
