//! Files as the package `tensorboard` reads them; skipped where Python does not have it.

use kiln_nn::{
    BatchNorm2d, Conv2d, Dropout, Flatten, Forward, Kernel, Linear, Module, ReLU, sequential,
};
use kiln_observe::Health;
use kiln_tensor::{DType, ErrorKind, Result, Tensor, profiler};
use kiln_tensorboard::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("kiln-tensorboard-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        Folder(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|e| e.path()).filter(|p| p.is_file()).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Everything that TensorBoard reads in a folder; `None` after a line about the skipped test.
fn read(folder: &Path) -> Option<Value> {
    python("read.py", folder, &[])
}

/// The answers of TensorBoard's server for a folder of runs; `None` after a line about the skipped test.
fn served(folder: &Path, paths: &[&str]) -> Option<Vec<Value>> {
    let answers = python("serve.py", folder, paths)?;
    let answers = answers.as_array().unwrap().clone();
    for (path, answer) in paths.iter().zip(&answers) {
        assert_eq!(answer["status"], 200, "{path}: {answer}");
    }
    let body = |a: &Value| match a["kind"] == "application/json" {
        true => serde_json::from_str(a["body"].as_str().unwrap()).unwrap(),
        false => a.clone(),
    };
    Some(answers.iter().map(body).collect())
}

/// The JSON that one of this folder's scripts prints.
fn python(script: &str, folder: &Path, arguments: &[&str]) -> Option<Value> {
    let python = std::env::var("KILN_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python)
        .args(["-c", "import tensorboard, google.protobuf, numpy"])
        .output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!("skipped: there is no python3 with tensorboard (KILN_PYTHON names another)");
        return None;
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let output = Command::new(&python)
        .arg(tests.join(script))
        .arg(folder)
        .args(arguments)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

fn decoded(png: &Value) -> (u32, u32, Vec<u8>) {
    let bytes: Vec<u8> = serde_json::from_value(png.clone()).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    (info.width, info.height, pixels)
}

#[test]
fn tensorboard_reads_every_kind() -> Result<()> {
    let folder = Folder::new("kinds");
    let writer = SummaryWriter::new(&folder.0)?;
    assert_eq!(writer.log_dir(), folder.0);
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
    let how = HParams::new()
        .run_name("trial")
        .global_step(2)
        .hparam_domain_discrete(domain);
    writer.add_hparams_with(hparams, [("hparam/accuracy", 0.75)], how)?;
    let points = Tensor::from([[1.0f32, 2.5], [3.0, -4.0], [0.0, 1e-9]]);
    let metadata = [["a", "1"], ["b", "2"], ["c", "3"]].map(|row| row.map(String::from).to_vec());
    let header = ["name", "id"].map(String::from);
    let pictures = Tensor::ones([3, 3, 2, 5], DType::F32);
    let how = Embedding::new()
        .metadata(metadata)
        .metadata_header(header)
        .label_img(&pictures)
        .tag("my/points");
    writer.add_embedding_with(&points, 12, how)?;
    writer.add_embedding(&points, None)?;
    writer.close()?;

    let sprite = std::fs::read(folder.0.join("00012/my%2fpoints/sprite.png")).unwrap();
    let (width, height, pixels) = decoded(&json!(sprite));
    assert_eq!((width, height), (10, 4));
    assert!(
        pixels[..60].iter().all(|p| *p == 255)
            && pixels[30 * 2 + 15..30 * 3].iter().all(|p| *p == 0)
    );
    let tsv = |name: &str| {
        std::fs::read_to_string(folder.0.join("00012/my%2fpoints").join(name)).unwrap()
    };
    assert_eq!(tsv("metadata.tsv"), "name\tid\na\t1\nb\t2\nc\t3\n");
    assert_eq!(tsv("tensors.tsv"), "1\t2.5\n3\t-4\n0\t0.000000001\n");

    let Some(all) = read(&folder.0) else {
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

#[test]
fn a_graph_has_modules_ops_and_kernels() -> Result<()> {
    let folder = Folder::new("graph");
    let writer = SummaryWriter::new(&folder.0)?;
    let model = sequential![
        "conv": Conv2d::new(1, 2, Kernel::new(3)),
        "norm": BatchNorm2d::new(2),
        "relu": ReLU::new(),
        "body": sequential![Flatten::new(), Dropout::new(0.5), Linear::new(32, 4)],
    ]?;
    model.get_submodule("norm")?.eval();
    let before: Vec<bool> = model.modules().iter().map(|m| m.is_training()).collect();
    let mean = model.named_buffers()[0].1.to_vec::<f32>()?;
    writer.add_graph(&model, Tensor::ones([3, 1, 6, 6], DType::F32))?;
    writer.close()?;
    let after: Vec<bool> = model.modules().iter().map(|m| m.is_training()).collect();
    assert_eq!(
        (before, mean),
        (after, model.named_buffers()[0].1.to_vec::<f32>()?)
    );

    let Some(all) = read(&folder.0) else {
        return Ok(());
    };
    let graph = &all["runs"]["."]["graph"];
    let nodes = graph["nodes"].as_array().unwrap();
    let named = |name: &str| {
        nodes
            .iter()
            .find(|n| n["name"] == name)
            .unwrap_or_else(|| panic!("{name} in {nodes:#?}"))
    };
    assert_eq!(named("input/0")["shapes"], json!([[3, 1, 6, 6]]));
    assert_eq!(named("Sequential/Conv2d[conv]/weight")["op"], "Parameter");
    named("Sequential/BatchNorm2d[norm]/running_mean");
    named("Sequential/Sequential[body]/Linear[2]/bias");
    let conv = named("Sequential/Conv2d[conv]/conv");
    let inputs = json!(["input/0", "Sequential/Conv2d[conv]/weight"]);
    assert_eq!(
        (&conv["input"], &conv["shapes"]),
        (&inputs, &json!([[3, 2, 4, 4]]))
    );
    assert_eq!(named("output/0")["shapes"], json!([[3, 4]]));
    let scope = |node: &Value| {
        node["name"]
            .as_str()
            .unwrap()
            .rsplit_once('/')
            .unwrap()
            .0
            .to_string()
    };
    let scopes: BTreeSet<String> = nodes.iter().map(scope).collect();
    for wanted in [
        "Sequential/ReLU[relu]",
        "Sequential/Sequential[body]/Linear[2]",
        "kernels",
    ] {
        assert!(scopes.contains(wanted), "{wanted} in {scopes:?}");
    }
    let names: BTreeSet<&str> = nodes.iter().map(|n| n["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), nodes.len());
    for node in nodes {
        for input in node["input"].as_array().unwrap() {
            let input = input.as_str().unwrap().split(':').next().unwrap();
            assert!(names.contains(input), "{input} of {node}");
        }
    }
    let times = graph["times"].as_object().unwrap();
    assert!(
        !times.is_empty()
            && times
                .iter()
                .all(|(name, t)| names.contains(&name[..]) && t.as_u64() > Some(0))
    );
    Ok(())
}

#[test]
fn the_server_shows_every_kind() -> Result<()> {
    let folder = Folder::new("served");
    let writer = SummaryWriter::new(&folder.0)?;
    let other = SummaryWriter::new(&folder.0)?;
    writer.add_scalar("loss/train", 0.5, 1)?;
    other.add_scalar("loss/val", 0.25, 1)?;
    other.close()?;
    writer.add_scalars("both", [("a", 1), ("b", 2)], 3)?;
    writer.add_histogram("weights", Tensor::from([0.0f32, 1.0, 1.5]), 2)?;
    writer.add_image("image", Tensor::ones([3, 2, 5], DType::F32), 4)?;
    writer.add_text("notes", "# Title", 0)?;
    // 0, 1/2 and what is clipped.
    let sound = Tensor::from([[0.0f32, 0.5, 2.0, -3.0, f32::NAN]]);
    writer.add_audio_with("sound", &sound, 6, 8000)?;
    #[cfg(feature = "video")]
    let video = {
        // Three videos of two frames of 2x1 pixels: dark, then bright.
        let frames = Tensor::from([0.0f32, 1.0]).reshape([1, 2, 1, 1, 1]);
        writer.add_video_with("video", frames.expand([3, 2, 3, 2, 1]), 5, 10.0)?;
        "/data/plugin/images/images?run=.&tag=video&sample=0"
    };
    #[cfg(not(feature = "video"))]
    let video = "/data/plugin/images/images?run=.&tag=image&sample=0";
    let chances = Tensor::from([0.1f32, 0.9]);
    writer.add_pr_curve("pr", Tensor::from([0i64, 1]), &chances, 1)?;
    writer.add_hparams_with(
        [("lr", 0.25.into())],
        [("accuracy", 0.75)],
        HParams::new().run_name("trial"),
    )?;
    let losses = Chart::multiline(["loss/train", "loss/val"]);
    let margin = Chart::margin("loss/val", "loss/train", "loss/val");
    writer.add_custom_scalars([("losses", [("lines", losses), ("margin", margin)])])?;
    let points = Tensor::from([[1.0f32, 2.5], [3.0, -4.0]]);
    let names = Embedding::new().metadata([vec!["a".to_string()], vec!["b".into()]]);
    writer.add_embedding_with(&points, 0, names)?;
    let model = sequential!["fc": Linear::new(3, 2), "act": ReLU::new()]?;
    writer.add_graph(&model, Tensor::ones([4, 3], DType::F32))?;
    let (out, profile) =
        profiler::profile(|| (Tensor::from([0.25f32]).atanh() * 7.0).item::<f32>());
    out?;
    writer.add_profile("epoch", &profile, 3)?;
    writer.close()?;

    let plugin = |path: &str| format!("/data/plugin/{path}");
    let paths = [
        "scalars/scalars?run=.&tag=loss/train",
        "scalars/scalars?run=.&tag=loss/val",
        "scalars/scalars?run=both_b&tag=both",
        "histograms/histograms?run=.&tag=weights",
        "images/images?run=.&tag=image&sample=0",
        "text/text?run=.&tag=notes/text_summary",
        "text/text?run=.&tag=epoch/compiled/text_summary",
        "audio/audio?run=.&tag=sound&sample=0",
        "pr_curves/pr_curves?run=.&tag=pr",
        "custom_scalars/layout",
        "projector/info?run=.",
        "projector/metadata?run=.&name=default:00000",
        "graphs/info",
        "graphs/graph?run=.&limit_attr_size=1024&large_attrs_key=_too_large_attrs",
        "graphs/run_metadata?run=.&tag=step1",
        "hparams/session_groups {\"startIndex\": 0, \"sliceSize\": 9, \"allowedStatuses\": [\"STATUS_SUCCESS\"], \
         \"colParams\": [{\"hparam\": \"lr\"}]}",
    ];
    let mut paths: Vec<String> = paths.map(plugin).into();
    paths.push(video.into());
    let paths: Vec<&str> = paths.iter().map(|p| &p[..]).collect();
    let Some(answers) = served(&folder.0, &paths) else {
        return Ok(());
    };
    let [
        train,
        val,
        both,
        histogram,
        image,
        notes,
        compiled,
        sound,
        curve,
        layout,
        points,
        names,
        info,
        graph,
        times,
        trials,
        video,
    ] = &answers[..]
    else {
        panic!("{} answers", answers.len())
    };
    let scalar = |list: &Value| (list[0][1].as_u64(), list[0][2].as_f64());
    let scalars = [train, val, both].map(scalar);
    assert_eq!(
        scalars,
        [
            (Some(1), Some(0.5)),
            (Some(1), Some(0.25)),
            (Some(3), Some(2.0))
        ]
    );
    let bins = histogram[0][2].as_array().unwrap();
    let count: f64 = bins.iter().map(|bin| bin[2].as_f64().unwrap()).sum();
    assert_eq!((&histogram[0][1], count), (&json!(2), 3.0));
    assert_eq!(image["kind"], "image/png");
    assert_eq!(decoded(&image["body"]), (5, 2, vec![255; 30]));
    assert!(
        notes[0]["text"]
            .as_str()
            .unwrap()
            .contains("<h1>Title</h1>")
    );
    let line = "crates/tensorboard/tests/tensorboard.rs:";
    assert!(
        compiled[0]["text"].as_str().unwrap().contains(line),
        "{compiled}"
    );
    assert_eq!(sound["kind"], "audio/wav");
    let wav: Vec<u8> = serde_json::from_value(sound["body"].clone()).unwrap();
    let word = |at: usize| u32::from_le_bytes(wav[at..at + 4].try_into().unwrap());
    // The bytes behind, samples and bytes a second, and those of the samples.
    assert_eq!([4, 24, 28, 40].map(word), [46, 8000, 16000, 10]);
    let samples = wav[44..]
        .chunks(2)
        .map(|s| i16::from_le_bytes([s[0], s[1]]));
    assert_eq!(samples.collect::<Vec<_>>(), [0, 16383, 32767, -32767, 0]);
    let curve = &curve["."][0];
    assert_eq!(
        (&curve["true_positives"][0], &curve["false_positives"][0]),
        (&json!(1), &json!(1))
    );
    let charts = &layout["category"][0]["chart"];
    assert_eq!(
        charts[0]["multiline"]["tag"],
        json!(["loss/train", "loss/val"])
    );
    assert_eq!(charts[1]["margin"]["series"][0]["upper"], "loss/val");
    assert_eq!(points["embeddings"][0]["tensorShape"], json!([2, 2]));
    assert_eq!(names["body"], "a\nb\n");
    assert_eq!(info["."]["run_graph"], true);
    // Modules and ops at the user's line, kernels, and the times of these.
    let graph = graph["body"].as_str().unwrap();
    let kernel = r#"name: "kernels/0_matmul_add_relu""#;
    for wanted in [
        r#"name: "Sequential/Linear[fc]/matmul""#,
        r#"input: "Sequential/Linear[fc]/add""#,
        kernel,
    ] {
        assert!(graph.contains(wanted), "{wanted} in {graph}");
    }
    assert!(
        graph.contains(line) && !graph.contains("tensorboard/src"),
        "{graph}"
    );
    assert!(
        times["body"]
            .as_str()
            .unwrap()
            .contains(&kernel.replace("name", "node_name")),
        "{times}"
    );
    let trial = &trials["sessionGroups"][0];
    assert_eq!(
        (&trial["name"], &trial["hparams"]["lr"]),
        (&json!("trial"), &json!(0.25))
    );
    #[cfg(feature = "video")]
    {
        assert_eq!(video["kind"], "image/gif");
        let bytes: Vec<u8> = serde_json::from_value(video["body"].clone()).unwrap();
        let mut options = gif::DecodeOptions::new();
        options.set_color_output(gif::ColorOutput::RGBA);
        let mut decoder = options.read_info(&bytes[..]).unwrap();
        // PyTorch's grid: a row of three, padded to four.
        assert_eq!((decoder.width(), decoder.height()), (4, 2));
        for wanted in [0, 255] {
            let frame = decoder.read_next_frame().unwrap().unwrap();
            let red: Vec<u8> = frame.buffer.chunks(4).map(|p| p[0]).collect();
            assert_eq!((frame.delay, &red[..3], red[3]), (10, &[wanted; 3][..], 0));
        }
        assert!(decoder.read_next_frame().unwrap().is_none());
    }
    #[cfg(not(feature = "video"))]
    assert_eq!(video, image);
    Ok(())
}

#[test]
fn health_is_scalars_by_layer() -> Result<()> {
    let folder = Folder::new("health");
    let model = sequential!["fc": Linear::new(3, 4), "act": ReLU::new()]?;
    let health = Health::watch(&model)?;
    model
        .call(Tensor::ones([2, 3], DType::F32))
        .sum(())
        .backward()?;
    let report = health.report()?;
    let writer = SummaryWriter::new(&folder.0)?;
    writer.add_health(&report, 7)?;
    drop(writer);
    let Some(all) = read(&folder.0) else {
        return Ok(());
    };
    let scalars = &all["runs"]["."]["scalars"];
    for (tag, value) in report.scalars().filter(|(_, value)| value.is_finite()) {
        let read = &scalars[&tag][0];
        assert_eq!(read[0], 7, "{tag}");
        assert_eq!(
            read[1].as_f64().map(|x| x as f32),
            Some(value as f32),
            "{tag}"
        );
    }
    Ok(())
}

#[test]
fn sessions_have_files_of_their_own() -> Result<()> {
    let folder = Folder::new("sessions");
    let first = SummaryWriter::new(WriterOptions::new(&folder.0).filename_suffix(".one"))?;
    for step in 0..10 {
        first.add_scalar("x", step, step)?;
    }
    first.close()?;
    assert_eq!(folder.files().len(), 1);
    assert!(folder.files()[0].to_string_lossy().ends_with(".one"));
    // Events behind the end go to a new file, and so do those of a writer beside it.
    first.add_scalar("x", 10, 10)?;
    let second = SummaryWriter::new(&folder.0)?;
    second.add_scalar("y", 0, 0)?;
    drop((first, second));
    assert_eq!(folder.files().len(), 3);
    // TensorBoard forgets steps from 5 on, as they are computed again.
    std::thread::sleep(Duration::from_millis(1100)); // files are read in the order of their seconds
    let resumed = SummaryWriter::new(WriterOptions::new(&folder.0).purge_step(5))?;
    resumed.add_scalar("x", 50, 5)?;
    drop(resumed);
    let Some(all) = read(&folder.0) else {
        return Ok(());
    };
    let steps: Vec<u64> = all["runs"]["."]["scalars"]["x"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e[0].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [0, 1, 2, 3, 4, 5]);
    Ok(())
}

#[test]
fn events_are_written_as_asked() -> Result<()> {
    let folder = Folder::new("flushing");
    let len = |folder: &Folder| folder.files()[0].metadata().unwrap().len();
    let writer = SummaryWriter::new(
        WriterOptions::new(&folder.0)
            .max_queue(3usize)
            .flush_secs(1u64),
    )?;
    let empty = len(&folder);
    for step in 0..3 {
        writer.add_scalar("x", 1, step)?;
    }
    assert_eq!(len(&folder), empty, "three may wait");
    writer.add_scalar("x", 1, 3)?;
    let four = len(&folder);
    assert!(four > empty);
    writer.add_scalar("x", 1, 4)?;
    writer.flush()?;
    let five = len(&folder);
    assert!(five > four);
    writer.add_scalar("x", 1, 5)?;
    let start = Instant::now();
    while len(&folder) == five {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "nothing was written in time"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn wrong_arguments_are_errors_at_the_users_line() -> Result<()> {
    let folder = Folder::new("errors");
    let writer = SummaryWriter::new(&folder.0)?;
    let x = Tensor::from([0.5f32, 1.0]);
    let matrix = x.reshape([1, 2]);
    let embedding = |how| writer.add_embedding_with(&matrix, 0, how);
    let errors = [
        (writer.add_scalar("x", &x, 0), "has 2 elements"),
        (
            writer.add_histogram("x", Tensor::zeros([0], DType::F32), 0),
            "there is no element",
        ),
        (
            writer.add_histogram("x", &x * f64::NAN, 0),
            "no element lies in a bin",
        ),
        (
            writer.add_histogram_with("x", &x, 0, Histogram::new().bins(Bins::Count(0))),
            "there must be a bin",
        ),
        (
            writer.add_histogram_with(
                "x",
                &x,
                0,
                Histogram::new().bins(Bins::Edges(vec![1.0, 0.0])),
            ),
            "which rise",
        ),
        (
            writer.add_histogram_raw(
                "x",
                RawHistogram {
                    bucket_limits: vec![1.0],
                    ..Default::default()
                },
                0,
            ),
            "1 limits and 0 counts",
        ),
        (
            writer.add_image("x", &x, 0),
            "the dims CHW are not those of an image of the shape [2]",
        ),
        (writer.add_image_with("x", &matrix, 0, "HH"), "the dims HH"),
        (
            writer.add_image("x", x.reshape([2, 1, 1]), 0),
            "1, 3 or 4 channels",
        ),
        (
            writer.add_figure(
                "x",
                Figure {
                    width: 1,
                    height: 1,
                    rgba: &[0],
                },
                0,
            ),
            "1 by 1 pixels of 4 bytes are not 1 bytes",
        ),
        (
            writer.add_pr_curve("x", &x, Tensor::from([2.0f32, 1.0]), 0),
            "between 0 and 1, not 2",
        ),
        (
            writer.add_pr_curve("x", &x, Tensor::from([1.0f32]), 0),
            "2 labels, 1 predictions",
        ),
        (
            writer.add_pr_curve_with("x", &x, &x, 0, PrCurve::new().num_thresholds(1usize)),
            "at least 2 thresholds",
        ),
        (
            writer.add_audio("x", Tensor::ones([2, 2], DType::F32), 0),
            "a sound has one channel",
        ),
        (writer.add_audio_with("x", &x, 0, 0), "0 samples a second"),
        #[cfg(feature = "video")]
        (
            writer.add_video("x", &matrix, 0),
            "the dims [n, t, c, h, w]",
        ),
        #[cfg(feature = "video")]
        (
            writer.add_video_with("x", matrix.reshape([1, 2, 1, 1, 1]), 0, 0.0),
            "a GIF has no 0 frames a second",
        ),
        #[cfg(feature = "svg")]
        (writer.add_figure_svg("x", "<p/>", 0), "unknown token"),
        (writer.add_embedding(&x, 0), "points are a matrix"),
        (
            embedding(Embedding::new().metadata([vec!["a".into()], vec!["b".into()]])),
            "2 rows of metadata for 1 points",
        ),
        (
            embedding(Embedding::new().metadata([vec!["a\tb".to_string()]])),
            "a tab",
        ),
        (
            embedding(Embedding::new().label_img(Tensor::ones([2, 3, 1, 1], DType::F32))),
            "a picture for each of 1 points",
        ),
    ];
    for (result, wanted) in errors {
        let e = result.expect_err(wanted);
        let text = e.to_string();
        assert!(
            text.contains(wanted) && text.contains("tests/tensorboard.rs"),
            "{wanted} in {text}"
        );
    }
    std::fs::write(folder.0.join("file"), b"").unwrap();
    let e = SummaryWriter::new(folder.0.join("file/below"))
        .err()
        .expect("a file is no folder");
    assert!(
        e.kind() == ErrorKind::Io && e.op() == "SummaryWriter::new",
        "{e}"
    );
    Ok(())
}

/// The name of a child process's folder.
const CHILD: &str = "KILN_TEST_TENSORBOARD_CHILD";

/// Adds scalars, says how many were flushed, and goes on until it is killed.
#[test]
fn child_that_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else {
        return;
    };
    let writer = SummaryWriter::new(WriterOptions::new(folder).max_queue(100usize)).unwrap();
    for step in 0u64.. {
        writer.add_scalar("x", step as f64, step).unwrap();
        if step % 7 == 0 {
            writer.flush().unwrap();
            println!("flushed {step}");
        }
    }
}

/// The scalars of a file, up to its end or to a record that is not whole, by a reader of this test's own.
fn scalars(file: &Path) -> Vec<u64> {
    let bytes = std::fs::read(file).unwrap();
    let (mut at, mut steps) = (0, Vec::new());
    while let Some(len) = bytes.get(at..at + 8) {
        let len = u64::from_le_bytes(len.try_into().unwrap()) as usize;
        let Some(record) = bytes.get(at + 12..at + 12 + len) else {
            break;
        };
        if bytes.len() < at + 16 + len {
            break;
        }
        // `step` is field 2, a varint, behind the eight bytes of the time; steps of 0 are left out.
        let mut step = 0;
        if record.get(9) == Some(&0x10) {
            for (i, byte) in record[10..].iter().enumerate() {
                step |= u64::from(byte & 0x7f) << (7 * i);
                if byte & 0x80 == 0 {
                    break;
                }
            }
        }
        steps.push(step);
        at += 16 + len;
    }
    steps.remove(0); // the version
    steps
}

#[test]
fn what_was_flushed_outlives_the_process() {
    use std::io::{BufRead, BufReader};
    let folder = Folder::new("killed");
    let rounds = std::env::var("KILN_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(5);
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_killed", "--nocapture"])
            .env(CHILD, &folder.0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // A number of lines that looks drawn, but is the same in each run.
        let wanted = 1 + (round * 7919 + 13) % 97;
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(std::result::Result::ok);
        let flushed = lines
            .by_ref()
            .filter_map(|line| line.strip_prefix("flushed ")?.parse::<u64>().ok());
        let told = flushed.take(wanted).last().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let files = folder.files();
        assert_eq!(files.len(), round + 1, "a session opens a new file");
        let newest = files
            .iter()
            .max_by_key(|f| f.metadata().unwrap().modified().unwrap())
            .unwrap();
        let found = scalars(newest);
        assert!(found.iter().copied().eq(0..found.len() as u64), "{found:?}");
        assert!(
            found.len() as u64 > told,
            "{told} was flushed, but {} are there",
            found.len()
        );
    }
    // The last record may be cut off, which ends a file.
    if let Some(all) = read(&folder.0) {
        assert!(
            !all["runs"]["."]["scalars"]["x"]
                .as_array()
                .unwrap()
                .is_empty()
        );
    }
}

#[test]
fn a_million_scalars_take_little_time() -> Result<()> {
    let folder = Folder::new("million");
    let start = Instant::now();
    let writer = SummaryWriter::new(&folder.0)?;
    for step in 0..1_000_000 {
        writer.add_scalar("loss", 1.0 / (step + 1) as f64, step)?;
    }
    writer.close()?;
    let took = start.elapsed();
    println!(
        "a million scalars: {took:?}, {} bytes",
        folder.files()[0].metadata().unwrap().len()
    );
    assert!(
        cfg!(debug_assertions) || took < Duration::from_secs(3),
        "{took:?}"
    );
    Ok(())
}

#[test]
fn a_profile_has_numbers_texts_and_a_trace() -> Result<()> {
    let folder = Folder::new("profile");
    let (out, profile) = profiler::profile(|| {
        let x = Tensor::from([0.25f32, 0.5, 0.75]);
        (x.atanh() * 7.0).cumsum(0).to_vec::<f32>()
    });
    out?;
    let writer = SummaryWriter::new(&folder.0)?;
    writer.add_profile("epoch", &profile, 3)?;
    writer.close()?;
    let is_trace = |p: &&PathBuf| p.to_string_lossy().ends_with(".pt.trace.json");
    let files = folder.files();
    let traces: Vec<&PathBuf> = files.iter().filter(is_trace).collect();
    assert_eq!(traces.len(), 1, "{files:?}");
    let trace: Value = serde_json::from_slice(&std::fs::read(traces[0]).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans = |tid: u64| {
        events
            .iter()
            .filter(move |e| e["ph"] == "X" && e["tid"] == tid)
    };
    assert_eq!(spans(0).count(), profile.runs().len());
    assert_eq!(spans(1).count(), profile.events().len());
    assert_eq!(spans(2).count(), profile.compilations().len());
    let Some(all) = read(&folder.0) else {
        return Ok(());
    };
    let run = &all["runs"]["."];
    let scalar = |name: &str| run["scalars"][format!("epoch/{name}")][0][1].as_f64();
    assert_eq!(
        scalar("compilations"),
        Some(profile.compilations().len() as f64)
    );
    let wall = profile.wall_time().as_secs_f64() * 1e3;
    assert!(scalar("wall_ms").is_some_and(|ms| (ms - wall).abs() <= 1e-6 * wall));
    assert_eq!(scalar("data_wait_ms"), Some(0.0));
    let text = |name: &str| {
        let text = &run["tensors"][format!("epoch/{name}/text_summary")][0]["values"][0];
        text.as_str().unwrap_or_default().to_string()
    };
    assert!(text("kernels").contains("tests/tensorboard.rs:"), "{run}");
    for c in profile.compilations() {
        assert!(text("compiled").contains(&c.reason), "{run}");
    }
    Ok(())
}
