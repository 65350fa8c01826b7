"""Writes metrics.json: batches, and scikit-learn's values of the metrics over all of them.

pip install numpy scikit-learn==1.9.1
python metrics.py > metrics.json
"""
import json
import warnings

import numpy as np
from sklearn import metrics as m

warnings.filterwarnings("ignore")  # 0 / 0 is 0


def case(classes, sizes, seed, used, ties):
    r = np.random.default_rng(seed)
    n = sum(sizes)
    scores = r.normal(size=(n, classes)).astype(np.float32)
    target = r.integers(0, used, n)
    scores[np.arange(n), target] += 0.7
    if ties:
        scores = np.round(scores)
        scores += np.arange(classes) * 1e-3  # the largest is unique, scores of a class are not
        scores = scores.astype(np.float32)
    preds = scores.argmax(1)
    labels = list(range(classes))
    out = {"classes": classes, "sizes": sizes, "scores": scores.ravel().tolist(), "target": target.tolist()}
    out["accuracy"] = m.accuracy_score(target, preds)
    if classes > 2:
        out["top2"] = m.top_k_accuracy_score(target, scores, k=2, labels=labels)
    out["confusion"] = m.confusion_matrix(target, preds, labels=labels).ravel().tolist()
    for name, f in [("precision", m.precision_score), ("recall", m.recall_score), ("f1", m.f1_score),
                    ("jaccard", m.jaccard_score)]:
        for average in ["micro", "macro", "weighted"]:
            out[f"{name}_{average}"] = f(target, preds, average=average, zero_division=0)
        out[f"{name}_none"] = f(target, preds, average=None, labels=labels, zero_division=0).tolist()
    present = used == classes
    out["auroc_binary"] = m.roc_auc_score(target == 0, scores[:, 0].astype(np.float64))
    if present:
        each = [m.roc_auc_score(target == c, scores[:, c].astype(np.float64)) for c in labels]
        out["auroc"] = float(np.mean(each))
    logits = scores.astype(np.float64)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    out["perplexity"] = float(np.exp(m.log_loss(target, p, labels=labels)))
    return out


cases = [
    case(3, [5, 1, 7], 0, 3, False),
    case(2, [16, 15], 1, 2, True),
    case(7, [33, 0, 20], 2, 5, False),
    case(4, [50, 50], 3, 4, True),
]
print(json.dumps(cases))
