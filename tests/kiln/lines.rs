//! Lines of operations that Kiln's libraries record: those of the user's calls.

use kiln::data::{Collate, DataLoader, Dataset, TensorDataset};
use kiln::distributed::{
    DataParallelOptions, DistributedDataParallel, ReduceOp, SyncBatchNorm, bf16_compress_hook,
    run_in_threads, world,
};
use kiln::distributions::*;
use kiln::metrics::*;
use kiln::nn::optim::{Optimizer, SGD};
use kiln::nn::{
    BatchNorm2d, Conv2d, Flatten, Forward, Kernel, Linear, Module, ReLU, Sequential, extract,
    sequential,
};
use kiln::tensorboard::SummaryWriter;
use kiln::vision::transforms::{self as transforms, Transform};
use kiln::vision::utils::{Grid, grid_image, make_grid, make_grid_of};
use kiln::vision::{Image, Mode, functional, inspect, ops};
use kiln::{DType, Device, Health, Result, Spec, Tensor, flops, randn, summary, trace_values};

/// Lines other than this file's that a call shows: of operations that it records, and of the tensors that it returns.
fn strange(name: &str, f: impl FnOnce() -> Result<Vec<Tensor>>) -> Vec<String> {
    let (returned, values) = trace_values(f).unwrap_or_else(|e| panic!("{name}: {e}"));
    let recorded = values.values().iter();
    let mut found: Vec<String> = recorded
        .filter(|v| !v.loc.to_string().starts_with(file!()))
        .map(|v| format!("{name}: {} at {}", v.called, v.loc))
        .collect();
    for t in returned.unwrap_or_else(|e| panic!("{name}: {e}")) {
        // The error of an operation names its operands' lines.
        let e = t
            .reshape([7, 11, 13, 17])
            .check()
            .expect_err("a wrong size")
            .to_string();
        if e.matches(file!()).count() < 2 {
            found.push(format!("{name}: {e}"));
        }
    }
    found
}

macro_rules! sweep {
    ($($name:literal: $made:expr;)*) => {{
        let mut found: Vec<String> = Vec::new();
        $(found.extend(strange($name, || Ok($made.into())));)*
        assert!(found.is_empty(), "{}", found.join("\n"));
    }};
}

fn model() -> Result<Sequential> {
    sequential![
        "conv": Conv2d::new(3, 4, Kernel::new(3).padding(1)),
        "norm": BatchNorm2d::new(4),
        "act": ReLU::new(),
        "flat": Flatten::new(),
        "head": Linear::new(4 * 8 * 8, 5)
    ]
}

#[test]
fn of_figures_health_and_metrics() -> Result<()> {
    let model = model()?;
    let x = Tensor::rand([6, 3, 8, 8], DType::F32);
    let y = Tensor::from([0i64, 1, 2, 3, 4, 0]);
    let scores = Tensor::rand([6, 5], DType::F32);
    sweep! {
        "Health": {
            let health = Health::watch(&model)?;
            let mut optimizer = Optimizer::new(model.parameters(), SGD::new().lr(0.1))?;
            let loss = model.call(&x).cross_entropy(&y);
            loss.backward()?;
            optimizer.step()?;
            health.report()?;
            [loss]
        };
        "extract": extract(&model, ["act"], &x)?.1[0].clone();
        "ConfusionMatrix": {
            let metric = ConfusionMatrix::new(5)?.ignore_index(0);
            metric.update(&scores, &y)?;
            let counts = metric.compute();
            metric.reset()?;
            [counts, metric.compute()]
        };
        "Precision": { let m = Precision::new(5, Average::Macro)?; m.update(&scores, &y)?; [m.compute()] };
        "Recall": { let m = Recall::new(5, Average::Micro)?; m.update(&scores, &y)?; [m.compute()] };
        "F1Score": { let m = F1Score::new(5, Average::Weighted)?; m.update(&scores, &y)?; [m.compute()] };
        "JaccardIndex": { let m = JaccardIndex::new(5, Average::None)?; m.update(&scores, &y)?; [m.compute()] };
        "Accuracy": {
            let m = Accuracy::new(5)?.top_k(2);
            m.update(&scores, &y)?;
            let value = m.compute();
            m.reset()?;
            [value]
        };
        "AUROC": { let m = AUROC::new(); let empty = m.compute(); m.update(&scores, &y)?; [empty, m.compute()] };
        "MeanMetric": { let m = MeanMetric::new()?; m.update(&scores)?; let v = m.compute(); m.reset()?; [v] };
        "RunningMean": { let m = RunningMean::new(3)?; m.update(&scores)?; let v = m.compute(); m.reset()?; [v] };
        "Perplexity": {
            let m = Perplexity::new()?.ignore_index(0);
            m.update(scores.unsqueeze(0), y.unsqueeze(0))?;
            let v = m.compute();
            m.reset()?;
            [v]
        };
    }
    let counted = flops(Spec::new(DType::F32, [6, 3, 8, 8]), |x| model.call(x))?;
    let table = summary(&model, Spec::new(DType::F32, [6, 3, 8, 8]))?;
    for call in counted.calls().iter().chain(table.flops().calls()) {
        assert!(call.loc.to_string().starts_with(file!()), "{}", call.loc);
    }
    Ok(())
}

#[test]
fn of_summary_writers() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("kiln-lines-{}", std::process::id()));
    let writer = SummaryWriter::new(&folder)?;
    let model = model()?;
    let x = Tensor::rand([2, 3, 8, 8], DType::F32);
    let none: [Tensor; 0] = [];
    sweep! {
        "add_scalar": { writer.add_scalar("x", x.mean(()), 0)?; none.clone() };
        "add_scalars": { writer.add_scalars("all", [("a", x.mean(())), ("b", x.amax(()))], 0)?; none.clone() };
        "add_histogram": { writer.add_histogram("x", &x, 0)?; none.clone() };
        "add_images": { writer.add_images("x", &x, 0)?; none.clone() };
        "add_audio": { writer.add_audio("x", x.reshape([-1]), 0)?; none.clone() };
        "add_video": { writer.add_video("x", x.unsqueeze(0), 0)?; none.clone() };
        "add_graph": { writer.add_graph(&model, &x)?; none.clone() };
        "add_embedding": { writer.add_embedding_with(x.flatten(1), 0, kiln::tensorboard::Embedding::new().label_img(&x))?; none.clone() };
        "add_pr_curve": {
            let (labels, chances) = (Tensor::from([0i64, 1, 1]), Tensor::from([0.2f32, 0.6, 0.9]));
            writer.add_pr_curve("x", labels, chances, 0)?;
            none.clone()
        };
        "add_health": { writer.add_health(&Health::watch(&model)?.report()?, 0)?; none.clone() };
    }
    drop(writer);
    std::fs::remove_dir_all(folder).ok();
    Ok(())
}

/// A data set that makes its samples by calls of the library.
struct Made(Image);

impl Dataset for Made {
    type Item = (Tensor, i64);
    fn len(&self) -> usize {
        4
    }
    fn get(&self, index: usize) -> Result<(Tensor, i64)> {
        let steps = (
            transforms::RandomHorizontalFlip::new(),
            transforms::ToTensor::new(),
            transforms::Normalize::new([0.5], [0.5]),
        );
        Ok((
            transforms::Compose::new(steps).call(self.0.clone())?,
            index as i64,
        ))
    }
}

#[test]
fn of_loaders() -> Result<()> {
    let image = Image::filled(8, 6, Mode::RGB, &[90, 120, 40])?;
    let rows = || TensorDataset::new((randn([5, 3]), Tensor::arange(0, 5, 1)));
    for workers in [0, 2] {
        sweep! {
            "TensorDataset": {
                let loader = DataLoader::new(rows()?).batch_size(2).shuffle(true).workers(workers).build()?;
                let batches = loader.iter().collect::<Result<Vec<_>>>()?;
                batches.into_iter().flat_map(|(x, y)| [x, y]).collect::<Vec<_>>()
            };
            "unbatched": {
                let loader = DataLoader::new(rows()?).unbatched().workers(workers).build()?;
                let rows = loader.iter().collect::<Result<Vec<_>>>()?;
                rows.into_iter().flat_map(|(x, y)| [x, y]).collect::<Vec<_>>()
            };
            "device": {
                let loader = DataLoader::new(rows()?).batch_size(2).device(Device::Cpu).workers(workers).build()?;
                let batches = loader.iter().collect::<Result<Vec<_>>>()?;
                batches.into_iter().flat_map(|(x, y)| [x, y]).collect::<Vec<_>>()
            };
            "transforms": {
                let loader = DataLoader::new(Made(image.clone())).batch_size(3).workers(workers).build()?;
                let batches = loader.iter().collect::<Result<Vec<_>>>()?;
                batches.into_iter().flat_map(|(x, y)| [x, y]).collect::<Vec<_>>()
            };
        }
    }
    sweep! {
        "get": { let (x, y) = rows()?.get(1)?; [x, y] };
        "collate": [Tensor::collate(vec![Tensor::ones([2], DType::F32); 2])?, f32::collate(vec![1.0, 2.0])?];
    }
    Ok(())
}

#[test]
fn of_pictures() -> Result<()> {
    let image = Image::filled(8, 6, Mode::RGB, &[90, 120, 40])?;
    let x = Tensor::rand([3, 8, 8], DType::F32);
    let array = Tensor::full([6, 8, 3], 7, DType::U8);
    sweep! {
        "Image::to_tensor": [image.to_tensor()?];
        "Image::to_array": [image.to_array()?];
        "to_tensor": [functional::to_tensor(&image)?];
        "pil_to_tensor": [functional::pil_to_tensor(&image)?];
        "array_to_tensor": [functional::array_to_tensor(&array)?];
        "normalize": [functional::normalize(&x, &[0.5], &[0.5])?];
        "convert_image_dtype": [functional::convert_image_dtype(&x, DType::U8)?];
        "to_dtype": [functional::to_dtype(&x, DType::F16, true)?];
        "erase": [functional::erase(&x, 1, 1, 2, 2, 0.0)?];
        "crop": [functional::crop(&x, -1, 2, 4, 8)?];
        "center_crop": [functional::center_crop(&x, 4)?];
        "five_crop": functional::five_crop(&x, 4)?;
        "ten_crop": functional::ten_crop(&x, 4)?;
        "hflip": [functional::hflip(&x)?];
        "vflip": [functional::vflip(&x)?];
        "pad": [functional::pad(&x, 2)?];
        "resize": [functional::resize(&x, 5)?];
        "resized_crop": [functional::resized_crop(&x, 1, 1, 4, 4, 6)?];
        "Compose": [transforms::Compose::new((transforms::ToTensor::new(), transforms::Normalize::new([0.5], [0.5]))).call(image.clone())?];
        "RandomErasing": [transforms::RandomErasing::new().p(1.0).call(x.clone())?];
        "ConvertImageDtype": [transforms::ConvertImageDtype::new(DType::U8).call(x.clone())?];
        "RandomCrop": [transforms::RandomCrop::new(5).padding(2).call(x.clone())?];
        "RandomResizedCrop": [transforms::RandomResizedCrop::new(5).call(x.clone())?];
        "RandomApply": [transforms::RandomApply::new((transforms::RandomVerticalFlip::new().p(1.0),)).p(1.0).call(x.clone())?];
        "RandomOrder": [transforms::RandomOrder::new((transforms::RandomVerticalFlip::new().p(1.0), transforms::Pad::new(1))).call(x.clone())?];
    }
    Ok(())
}

#[test]
fn of_boxes_grids_and_maps() -> Result<()> {
    let model = sequential![
        "conv": Conv2d::new(3, 4, Kernel::new(3).padding(1)),
        "act": ReLU::new(),
        "pool": kiln::nn::AdaptiveAvgPool2d::new(1),
        "flat": Flatten::new(),
        "head": Linear::new(4, 5)
    ]?;
    let boxes = Tensor::from([
        [0.0f32, 0.0, 4.0, 4.0],
        [1.0, 1.0, 5.0, 6.0],
        [2.0, 2.0, 3.0, 8.0],
    ]);
    let scores = Tensor::from([0.3f32, 0.9, 0.5]);
    let images = Tensor::rand([2, 3, 8, 8], DType::F32);
    let regions = Tensor::from([[0.0f32, 1.0, 1.0, 6.0, 6.0]]);
    let image = functional::to_pil_image(&images.select(0, 0))?;
    let targets = Tensor::from([0.0f32, 1.0, 1.0]);
    sweep! {
        "box_convert": [ops::box_convert(&boxes, ops::BoxFormat::Xyxy, ops::BoxFormat::Cxcywh)?];
        "box_area": [ops::box_area(&boxes)?];
        "box_iou": [ops::box_iou(&boxes, &boxes)?];
        "generalized_box_iou": [ops::generalized_box_iou(&boxes, &boxes)?];
        "generalized_box_iou_loss": [ops::generalized_box_iou_loss(&boxes, &boxes, kiln::Reduction::Mean)?];
        "clip_boxes_to_image": [ops::clip_boxes_to_image(&boxes, (4, 4))?];
        "remove_small_boxes": [ops::remove_small_boxes(&boxes, 2.0)?];
        "nms": [ops::nms(&boxes, &scores, 0.3)?];
        "batched_nms": [ops::batched_nms(&boxes, &scores, &Tensor::from([0i64, 1, 0]), 0.3)?];
        "sigmoid_focal_loss": [ops::sigmoid_focal_loss(&scores, &targets)?];
        "roi_align": [ops::roi_align(&images, &regions, ops::RoiAlign::new((2, 2)))?];
        "make_grid": [make_grid(&images, Grid::new().normalize(true).scale_each(true))?];
        "make_grid_of": [make_grid_of(&[images.select(0, 0), images.select(0, 1)], Grid::new())?];
        "grid_image": [grid_image(&images, Grid::new())?.to_tensor()?];
        "grad_cam": [inspect::grad_cam(&model, "conv", &images, 1)?];
        "cam": [inspect::cam(&model, "conv", "head", &images, None)?];
        "input_gradient": [inspect::input_gradient(&model, &images, None)?];
        "saliency": [inspect::saliency(&model, &images, [0, 1])?];
        "guided_backprop": [inspect::guided_backprop(&model, &images, 1)?];
        "normalise": [inspect::normalise(&images)?];
        "feature_maps": [inspect::feature_maps(&model, "conv", &images)?];
        "filters": [inspect::filters(&model, "conv")?];
        "overlay": [inspect::overlay(&image, &images.select(0, 0).select(0, 0), inspect::ColourMap::Viridis, 0.5)?.to_tensor()?];
    }
    Ok(())
}

/// The tensors that the methods of a distribution return.
fn all<D: Distribution>(p: &D) -> Vec<Tensor> {
    let x = p.sample(3);
    vec![
        p.log_prob(&x),
        x,
        p.entropy(),
        p.mean(),
        p.variance(),
        p.stddev(),
    ]
}

#[test]
fn of_distributions() -> Result<()> {
    let (a, b) = (Tensor::from([0.5f32, 0.25]), Tensor::from([1.0f32, 2.0]));
    macro_rules! continuous {
        ($($name:ident)*) => {{
            let mut found = Vec::new();
            $(found.extend(strange(stringify!($name), || {
                let p = $name::new(&a, &b);
                let mut made = all(&p);
                made.extend([p.rsample(3), kl_divergence(&p, &$name::new(&b, &b))]);
                made.extend(all(&Independent::new(p.clone(), 1)));
                made.push(Independent::new(p, 1).rsample(()));
                Ok(made)
            }));)*
            assert!(found.is_empty(), "{}", found.join("\n"));
        }};
    }
    continuous!(Normal LogNormal Laplace Gumbel Uniform);
    sweep! {
        "cdf": { let p = Normal::new(&a, &b); [p.cdf(&a), p.icdf(&a)] };
        "Exponential": { let p = Exponential::new(&a); let mut made = all(&p); made.extend([p.rsample(2), kl_divergence(&p, &p)]); made };
        "Bernoulli": { let p = Bernoulli::new(&a); let mut made = all(&p); made.push(kl_divergence(&p, &Bernoulli::from_logits(&a))); made };
        "Categorical": { let p = Categorical::new(&a); let mut made = all(&p); made.push(kl_divergence(&p, &Categorical::from_logits(&a))); made };
        "Independent": { let p = Independent::new(Normal::new(&a, &b), 1); [kl_divergence(&p, &p)] };
    }
    Ok(())
}

#[test]
fn of_processes() -> Result<()> {
    let run = || -> Result<()> {
        let group = world()?;
        let rank = group.rank();
        let x = Tensor::rand([4, 3, 4, 4], DType::F32).requires_grad_(true);
        sweep! {
            "all_reduce": [group.all_reduce(&x, ReduceOp::Mean)];
            "reduce": [group.reduce(&x, 1, ReduceOp::Mean)];
            "broadcast": [group.broadcast(&x, 1)];
            "all_gather": [group.all_gather(&x)];
            "reduce_scatter": [group.reduce_scatter(&x, ReduceOp::Mean)];
            "gather": [group.gather(x.detach(), 0)];
            "scatter": [group.scatter(if rank == 0 { x.detach() } else { x.detach().narrow(0, 0, 2) }, 0)];
            "all_to_all": [group.all_to_all(&x)];
            "send and recv": {
                group.send(x.detach(), 1 - rank)?;
                [group.recv([4, 3, 4, 4], DType::F32, 1 - rank)]
            };
            "barrier": { group.barrier()?; [x.clone()] };
            "backward": {
                let sum = group.all_reduce(&x, ReduceOp::Mean).sum(())
                    + group.broadcast(&x, 0).sum(())
                    + group.all_gather(&x).sum(())
                    + group.reduce_scatter(&x, ReduceOp::Mean).sum(())
                    + group.reduce(&x, 0, ReduceOp::Mean).sum(());
                sum.backward()?;
                [x.grad().expect("a gradient")]
            };
        }
        let trained =
            |model: &DistributedDataParallel<Sequential>, steps: usize| -> Result<Vec<Tensor>> {
                let mut optimizer = Optimizer::new(model.parameters(), SGD::new().lr(0.1))?;
                let mut losses = Vec::new();
                for _ in 0..steps {
                    optimizer.zero_grad();
                    let loss = model.call(x.detach()).square().mean(());
                    loss.backward()?;
                    optimizer.step()?;
                    losses.push(loss);
                }
                Ok(losses)
            };
        // Buckets of a few numbers.
        let options = || DataParallelOptions::new().bucket_cap_mb(0.0001);
        sweep! {
            "SyncBatchNorm": {
                let model = model_of_images()?;
                SyncBatchNorm::convert_sync_batchnorm(&model)?;
                let model = DistributedDataParallel::with(model, options().find_unused_parameters(true))?;
                model.register_comm_hook(bf16_compress_hook)?;
                trained(&model, 2)?
            };
            "join": {
                let model = DistributedDataParallel::with(model_of_images()?, options())?;
                model.join(|| trained(&model, 1 + rank))?
            };
        }
        Ok(())
    };
    for done in run_in_threads(2, |_| run()) {
        done?;
    }
    Ok(())
}

fn model_of_images() -> Result<Sequential> {
    sequential![
        Conv2d::new(3, 4, Kernel::new(3).padding(1)),
        BatchNorm2d::new(4),
        ReLU::new(),
        Flatten::new(),
        Linear::new(64, 5)
    ]
}

#[test]
fn of_calls_of_models() -> Result<()> {
    let model = kiln_models::ResNet::resnet18(10)?;
    let y = model.call(randn([1, 4, 64, 64]));
    let call = format!("in ResNet(), called at {}:{}:", file!(), line!() - 1);
    let e = y.check().expect_err("four channels").to_string();
    assert!(e.contains("crates/models/src/resnet.rs"), "{e}");
    assert!(e.contains(&call), "{e}");
    Ok(())
}

#[test]
fn of_layers() -> Result<()> {
    use kiln::nn::*;
    let none: [Tensor; 0] = [];
    sweep! {
        "norms": {
            drop((BatchNorm1d::new(3)?, InstanceNorm2d::new(3)?, LayerNorm::new(3)?));
            drop((GroupNorm::new(1, 3)?, RMSNorm::new(3)?));
            none.clone()
        };
        "recurrent": { drop((LSTM::new(3, 4)?, GRU::new(3, 4)?, RNN::new(3, 4)?)); none.clone() };
        "attention": {
            drop(MultiheadAttention::new(8, 2)?);
            drop((TransformerEncoderLayer::new(8, 2)?, TransformerDecoderLayer::new(8, 2)?));
            none.clone()
        };
        "others": {
            drop((Embedding::new(5, 3)?, EmbeddingBag::new(5, 3)?, Bilinear::new(2, 3, 4)?, PReLU::new(1)?));
            drop((Conv1d::new(2, 3, Kernel::new(3))?, ConvTranspose2d::new(2, 3, 3)?));
            none.clone()
        };
    }
    Ok(())
}
