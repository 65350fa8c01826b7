//! The answers of TensorBoard's server.

use crate::{decoded, served};
use kiln_nn::{Linear, ReLU, sequential};
use kiln_tensor::{DType, Result, Tensor, profiler};
use kiln_tensorboard::*;
use serde_json::{Value, json};

#[test]
fn the_server_shows_every_kind() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let writer = SummaryWriter::new(folder.path())?;
    let other = SummaryWriter::new(folder.path())?;
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
    let Some(answers) = served(folder.path(), &paths) else {
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
    let line = "crates/tensorboard/tests/tensorboard/server.rs:";
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
