//! Each kind of tag, as the package reads it.

use crate::{decoded, read};
use kiln_tensor::{DType, Result, Tensor};
use kiln_tensorboard::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[test]
fn tensorboard_reads_every_kind() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let writer = SummaryWriter::new(folder.path())?;
    assert_eq!(writer.log_dir(), folder.path());
    for step in 0..3 {
        writer.set_walltime(100.5 + step as f64);
        writer.add_scalar("loss/train", Tensor::from(0.5f32).pow(step), step)?;
    }
    writer.set_walltime(None);
    writer.add_scalar("odd", f64::NAN, 7u64)?;
    writer.add_scalar("odd", f64::INFINITY, usize::MAX)?;
    writer.add_scalar("no step", 2, None)?;
    writer.add_scalar_with("exact", 0.1, 1, ScalarStyle::new().double_precision(true))?;
    writer.add_scalar_with("new", 0.5, 1, ScalarStyle::new().new_style(true))?;
    writer.add_scalars("angles/a", [("sin", 0.5), ("cos", 0.8)], 4)?;
    writer.add_text("notes", "# Title  \nsecond line: ä", 3)?;
    // numpy.histogram(values, bins) of PyTorch's make_histogram.
    let values = Tensor::from([0.0f32, 1.0, 1.5, -2.0, 1.0]);
    writer.add_histogram("weights", &values, 1)?;
    writer.add_histogram_with(
        "weights/4",
        &values,
        2,
        Histogram::new().bins(Bins::Count(4)),
    )?;
    let edges = Bins::Edges(vec![-5.0, -2.0, 0.0, 1.0, 1.25, 9.0, 10.0]);
    writer.add_histogram_with(
        "weights/edges",
        &values,
        2,
        Histogram::new().bins(edges.clone()),
    )?;
    writer.add_histogram_with(
        "weights/two",
        &values,
        2,
        Histogram::new().bins(edges).max_bins(3usize),
    )?;
    writer.add_histogram_raw(
        "raw",
        RawHistogram {
            min: 0.0,
            max: 2.0,
            num: 3.0,
            sum: 4.0,
            sum_squares: 6.0,
            bucket_limits: vec![1.0, 2.0],
            bucket_counts: vec![1.0, 2.0],
        },
        5,
    )?;
    // 2x3 pixels, a channel each.
    let image = Tensor::from([[[0.0f32, 0.5, 1.0], [2.0, -1.0, f32::NAN]]]);
    writer.add_image("grey", &image, 1)?;
    let bytes = Tensor::from([[[1u8, 2, 3, 4], [5, 6, 7, 8]]]);
    writer.add_image_with("rgba", &bytes, 1, "hwc")?;
    writer.add_image_with("transposed", bytes.i((0, 0)).unsqueeze(0), 1, "WH")?;
    writer.add_images(
        "many",
        Tensor::arange(0, 9 * 2, 1)
            .reshape([9, 1, 1, 2])
            .to_dtype(DType::U8),
        1,
    )?;
    writer.add_figure(
        "figure",
        Figure {
            width: 1,
            height: 2,
            rgba: &[9, 8, 7, 0, 6, 5, 4, 255],
        },
        2,
    )?;
    let labels = Tensor::from([0i64, 1, 1, 0]);
    let chances = Tensor::from([0.1f32, 0.9, 0.4, 0.6]);
    writer.add_pr_curve_with(
        "pr",
        &labels,
        &chances,
        1,
        PrCurve::new().num_thresholds(3usize),
    )?;
    writer.add_pr_curve("pr/127", &labels, &chances, 1)?;
    writer.add_pr_curve_raw("pr/raw", &[[1.0, 2.0, 3.0, 4.0, 0.5, 0.25]], 1)?;
    let hparams = [
        ("lr", 0.25.into()),
        ("optimizer", "adam".into()),
        ("bias", true.into()),
        ("layers", 3.into()),
    ];
    let domain = [("optimizer".to_string(), vec!["adam".into(), "sgd".into()])];
    let options = HParams::new()
        .run_name("trial")
        .global_step(2)
        .hparam_domain_discrete(domain);
    writer.add_hparams_with(hparams, [("hparam/accuracy", 0.75)], options)?;
    let points = Tensor::from([[1.0f32, 2.5], [3.0, -4.0], [0.0, 1e-9]]);
    let metadata = [["a", "1"], ["b", "2"], ["c", "3"]].map(|row| row.map(String::from).to_vec());
    let header = ["name", "id"].map(String::from);
    let pictures = Tensor::ones([3, 3, 2, 5], DType::F32);
    let options = Embedding::new()
        .metadata(metadata)
        .metadata_header(header)
        .label_img(&pictures)
        .tag("my/points");
    writer.add_embedding_with(&points, 12, options)?;
    writer.add_embedding(&points, None)?;
    writer.close()?;

    let sprite = std::fs::read(folder.path().join("00012/my%2fpoints/sprite.png")).unwrap();
    let (width, height, pixels) = decoded(&json!(sprite));
    assert_eq!((width, height), (10, 4));
    assert!(
        pixels[..60].iter().all(|p| *p == 255)
            && pixels[30 * 2 + 15..30 * 3].iter().all(|p| *p == 0)
    );
    let tsv = |name: &str| {
        std::fs::read_to_string(folder.path().join("00012/my%2fpoints").join(name)).unwrap()
    };
    assert_eq!(tsv("metadata.tsv"), "name\tid\na\t1\nb\t2\nc\t3\n");
    assert_eq!(tsv("tensors.tsv"), "1\t2.5\n3\t-4\n0\t0.000000001\n");

    let Some(all) = read(folder.path()) else {
        return Ok(());
    };
    let names: BTreeSet<&str> = all["runs"]
        .as_object()
        .unwrap()
        .keys()
        .map(|k| &k[..])
        .collect();
    assert_eq!(
        names,
        BTreeSet::from([".", "angles_a_cos", "angles_a_sin", "trial"])
    );
    let run = &all["runs"]["."];
    let loss = json!([[0, 1.0, 100.5], [1, 0.5, 101.5], [2, 0.25, 102.5]]);
    assert_eq!(run["scalars"]["loss/train"], loss);
    let shown = |event: &Value| json!([event[0], event[1]]);
    assert_eq!(shown(&run["scalars"]["no step"][0]), json!([0, 2.0]));
    assert_eq!(
        all["runs"]["angles_a_sin"]["scalars"]["angles/a"][0][1],
        0.5
    );
    let odd = run["scalars"]["odd"].as_array().unwrap();
    let odd: Vec<Value> = odd.iter().map(shown).collect();
    assert_eq!(odd, [json!([7, "nan"]), json!([i64::MAX, "inf"])]);
    assert_eq!(
        run["tensors"]["exact"],
        json!([{"step": 1, "shape": [], "values": [0.1]}])
    );
    assert_eq!(run["tensors"]["new"][0]["values"], json!([0.5]));
    assert_eq!(run["plugins"]["exact"], "scalars");
    let text = json!([{"step": 3, "shape": [1], "values": ["# Title  \nsecond line: ä"]}]);
    assert_eq!(run["tensors"]["notes/text_summary"], text);
    assert_eq!(run["plugins"]["notes/text_summary"], "text");
    let histogram = |tag: &str| run["histograms"][tag][0].as_array().unwrap().clone();
    assert_eq!(
        histogram("weights")[..6],
        json!([1, -2.0, 1.5, 5.0, 1.5, 8.25]).as_array().unwrap()[..]
    );
    let (limits, counts) = (
        histogram("weights")[6].clone(),
        histogram("weights")[7].clone(),
    );
    let counts: Vec<f64> = serde_json::from_value(counts).unwrap();
    let limits: Vec<f64> = serde_json::from_value(limits).unwrap();
    assert_eq!(
        (counts.len(), counts.iter().sum::<f64>()),
        (limits.len(), 5.0)
    );
    assert!(counts[0] == 0.0 && limits[0] <= -2.0 && *limits.last().unwrap() > 1.5);
    assert_eq!(
        histogram("weights/4")[6..],
        [
            json!([-2.0, -1.125, -0.25, 0.625, 1.5]),
            json!([0.0, 1.0, 0.0, 1.0, 3.0])
        ]
    );
    assert_eq!(
        histogram("weights/edges")[6..],
        [
            json!([-2.0, 0.0, 1.0, 1.25, 9.0]),
            json!([0.0, 1.0, 1.0, 2.0, 1.0])
        ]
    );
    assert_eq!(
        histogram("weights/two")[6..],
        [json!([-5.0, 0.0, 1.25, 10.0]), json!([0.0, 1.0, 3.0, 1.0])]
    );
    assert_eq!(
        run["histograms"]["raw"][0],
        json!([5, 0.0, 2.0, 3.0, 4.0, 6.0, [1.0, 2.0], [1.0, 2.0]])
    );
    let picture = |tag: &str| decoded(&run["images"][tag][0][3]);
    let grey = [0, 127, 255, 255, 0, 0]
        .into_iter()
        .flat_map(|v| [v; 3])
        .collect();
    assert_eq!(picture("grey"), (3, 2, grey));
    assert_eq!(picture("rgba"), (2, 1, vec![1, 2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(
        picture("transposed"),
        (
            1,
            4,
            [1, 2, 3, 4].into_iter().flat_map(|v| [v; 3]).collect()
        )
    );
    let (width, height, many) = picture("many");
    assert_eq!(
        (
            width,
            height,
            many[3 * 15],
            many[3 * 16],
            many[3 * 17],
            many[3 * 18]
        ),
        (16, 2, 15, 16, 17, 0)
    );
    assert_eq!(picture("figure"), (1, 2, vec![9, 8, 7, 6, 5, 4]));
    // Thresholds 0, 1/2 and 1: predictions fall into the bins 0, 1, 0, 1.
    let curve = json!([[
        [2.0, 1.0, 0.0],
        [2.0, 1.0, 0.0],
        [0.0, 1.0, 2.0],
        [0.0, 1.0, 2.0],
        [0.5, 0.5, 0.0],
        [1.0, 0.5, 0.0]
    ]]);
    let curve: Vec<f64> = serde_json::from_value::<Vec<Vec<Vec<f64>>>>(curve)
        .unwrap()
        .concat()
        .concat();
    assert_eq!(
        run["tensors"]["pr"][0],
        json!({"step": 1, "shape": [6, 3], "values": curve})
    );
    assert_eq!(run["tensors"]["pr/127"][0]["shape"], json!([6, 127]));
    assert_eq!(
        run["thresholds"],
        json!({"pr": 3, "pr/127": 127, "pr/raw": 1})
    );
    let trial = &all["runs"]["trial"];
    assert_eq!(
        shown(&trial["scalars"]["hparam/accuracy"][0]),
        json!([2, 0.75])
    );
    let [experiment, start, end] = ["experiment", "session_start_info", "session_end_info"]
        .map(|n| &trial["hparams"][format!("_hparams_/{n}")]);
    assert_eq!(
        experiment["types"],
        json!({"lr": 3, "optimizer": 1, "bias": 2, "layers": 3})
    );
    assert_eq!(experiment["domains"]["optimizer"], json!(["adam", "sgd"]));
    assert_eq!(experiment["metrics"], json!(["hparam/accuracy"]));
    assert_eq!(
        start["values"],
        json!({"lr": 0.25, "optimizer": "adam", "bias": true, "layers": 3.0})
    );
    assert_eq!(end["status"], 1);
    let projector = json!([
        {
            "tensor_name": "my/points:00012", "tensor_path": "00012/my%2fpoints/tensors.tsv",
            "metadata_path": "00012/my%2fpoints/metadata.tsv", "image_path": "00012/my%2fpoints/sprite.png",
            "single_image_dim": [5, 2],
        },
        {
            "tensor_name": "default:00000", "tensor_path": "00000/default/tensors.tsv", "metadata_path": "",
            "image_path": "", "single_image_dim": [],
        },
    ]);
    assert_eq!(all["projector"], projector);
    Ok(())
}
