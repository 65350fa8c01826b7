"""Prints everything in a folder of runs, as the package tensorboard reads it, as JSON."""
import json
import math
import sys

from google.protobuf import text_format
from tensorboard.backend.event_processing import event_multiplexer
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.pr_curve import plugin_data_pb2 as pr_curve
from tensorboard.plugins.projector import projector_config_pb2
from tensorboard.util import tensor_util

root = sys.argv[1]
runs = event_multiplexer.EventMultiplexer(size_guidance={
    kind: 0 for kind in ["scalars", "histograms", "images", "tensors", "graph", "compressedHistograms", "audio"]
}).AddRunsFromDirectory(root)
runs.Reload()


def hparams(content):
    data = plugin_data_pb2.HParamsPluginData.FromString(content)
    start, all = data.session_start_info.hparams, data.experiment.hparam_infos
    value = lambda v: getattr(v, v.WhichOneof("kind"))
    return {
        "kind": data.WhichOneof("data"),
        "values": {k: value(v) for k, v in start.items()},
        "types": {i.name: i.type for i in all},
        "domains": {i.name: [value(v) for v in i.domain_discrete.values] for i in all},
        "metrics": [m.name.tag for m in data.experiment.metric_infos],
        "status": data.session_end_info.status,
    }


def number(value):
    return value if math.isfinite(value) else str(value)


def tensors(run, tag):
    out = []
    for e in run.Tensors(tag):
        a = tensor_util.make_ndarray(e.tensor_proto)
        texts = [v.decode() for v in a.ravel()] if a.dtype == object else a.ravel().tolist()
        out.append({"step": e.step, "shape": list(a.shape), "values": texts})
    return out


def histogram(h):
    v = h.histogram_value
    return [h.step, v.min, v.max, v.num, v.sum, v.sum_squares, list(v.bucket_limit), list(v.bucket)]


def graph(run):
    if not run.Tags()["graph"]:
        return None
    names = lambda n: {"name": n.name, "op": n.op, "input": list(n.input),
                       "shapes": [[d.size for d in s.dim] for s in n.attr["_output_shapes"].list.shape]}
    times = {}
    for tag in run.Tags()["run_metadata"]:
        for device in run.RunMetadata(tag).step_stats.dev_stats:
            times.update({n.node_name: n.all_end_rel_micros for n in device.node_stats})
    return {"nodes": [names(n) for n in run.Graph().node], "times": times}


def read(name):
    run = runs.GetAccumulator(name)
    tags = run.Tags()
    plugins = {tag: run.SummaryMetadata(tag).plugin_data.plugin_name for tag in tags["tensors"]}
    hidden = [t for t in run.PluginTagToContent("hparams")] if "hparams" in plugins_of(run) else []
    return {
        "scalars": {t: [[e.step, number(e.value), e.wall_time] for e in run.Scalars(t)] for t in tags["scalars"]},
        "histograms": {t: [histogram(h) for h in run.Histograms(t)] for t in tags["histograms"]},
        "images": {t: [[e.step, e.width, e.height, list(e.encoded_image_string)] for e in run.Images(t)]
                   for t in tags["images"]},
        "tensors": {t: tensors(run, t) for t in tags["tensors"]},
        "plugins": plugins,
        "thresholds": {t: pr_curve.PrCurvePluginData.FromString(run.PluginTagToContent("pr_curves")[t]).num_thresholds
                       for t, p in plugins.items() if p == "pr_curves"},
        "hparams": {t: hparams(run.PluginTagToContent("hparams")[t]) for t in hidden},
        "graph": graph(run),
    }


def plugins_of(run):
    return run._plugin_to_tag_to_content


out = {"runs": {name: read(name) for name in runs.Runs()}}
try:
    with open(f"{root}/projector_config.pbtxt") as f:
        config = text_format.Parse(f.read(), projector_config_pb2.ProjectorConfig())
    out["projector"] = [{
        "tensor_name": e.tensor_name, "tensor_path": e.tensor_path, "metadata_path": e.metadata_path,
        "image_path": e.sprite.image_path, "single_image_dim": list(e.sprite.single_image_dim),
    } for e in config.embeddings]
except FileNotFoundError:
    pass
json.dump(out, sys.stdout)
