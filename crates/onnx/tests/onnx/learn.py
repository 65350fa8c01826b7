"""Makes models of scikit-learn's estimators as skl2onnx exports them, with inputs and onnxruntime's outputs:

    learn.py FOLDER    (with scikit-learn 1.9, skl2onnx 1.20, onnx and onnxruntime 1.32)

`tests/goldens/onnx_learn.tar.xz` holds what it wrote.
"""

import os
import sys
import warnings

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    KBinsDiscretizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC, NuSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

warnings.filterwarnings("ignore")
FOLDER = sys.argv[1]
RNG = np.random.default_rng(51)
ROWS, FEATURES = 60, 4
OPSETS = {"": 21, "ai.onnx.ml": 3}


def message(value):
    if not isinstance(value, list):
        return numpy_helper.from_array(np.asarray(value))
    maps = onnx.SequenceProto(elem_type=onnx.SequenceProto.MAP)
    for found in value:
        m = maps.map_values.add()
        if isinstance(next(iter(found)), str):
            m.key_type = onnx.TensorProto.STRING
            m.string_keys.extend(k.encode() for k in found)
        else:
            m.key_type = onnx.TensorProto.INT64
            m.keys.extend(found)
        m.values.elem_type = onnx.SequenceProto.TENSOR
        m.values.tensor_values.extend(numpy_helper.from_array(np.float32(v)) for v in found.values())
    return maps


def save(name, model, inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, inputs)
    folder = os.path.join(FOLDER, name, "test_data_set_0")
    os.makedirs(folder)
    onnx.save(model, os.path.join(FOLDER, name, "model.onnx"))
    for kind, values in ("input", inputs.values()), ("output", found):
        for i, value in enumerate(values):
            with open(os.path.join(folder, f"{kind}_{i}.pb"), "wb") as f:
                f.write(message(value).SerializeToString())


def case(name, estimator, x, y=None, options=None, like=None):
    estimator.fit(x, y)
    try:
        model = to_onnx(estimator, like if like is not None else x[:1], options=options, target_opset=OPSETS)
        save(name, model, {model.graph.input[0].name: x[:: 7]})
    except Exception as e:
        print(name, "is left out:", str(e)[:100])


X = RNG.standard_normal((ROWS, FEATURES)).astype(np.float32)
THREE = (X[:, 0] + X[:, 1] > 0).astype(np.int64) + (X[:, 2] > 0.5)
TWO = (X[:, 0] - X[:, 3] > 0).astype(np.int64)
WORDS = np.array(["ant", "bee", "cow"])[THREE]
REAL = (X @ np.arange(1, FEATURES + 1)).astype(np.float32)
PLAIN = {"zipmap": False}

case("logistic_maps", LogisticRegression(), X, THREE)
case("logistic_words", LogisticRegression(), X, WORDS)
case("logistic_two", make_pipeline(StandardScaler(), LogisticRegression()), X, TWO, {LogisticRegression: PLAIN})
case("logistic_rest", OneVsRestClassifier(LogisticRegression()), X, THREE)
case("sgd", SGDClassifier(), X, THREE)
case("linear_svc", LinearSVC(), X, THREE)
case("svc", SVC(), X, THREE)
case("svc_two", SVC(kernel="poly", degree=2), X, TWO)
case("svc_words", SVC(kernel="sigmoid"), X, WORDS)
case("svc_linear", SVC(kernel="linear", decision_function_shape="ovo"), X, THREE)
case("svc_probability", SVC(probability=True), X, THREE)
case("svc_probability_two", SVC(probability=True), X, TWO)
case("nu_svc", NuSVC(), X, TWO)
case("svr", SVR(), X, REAL)
case("one_class_svm", OneClassSVM(), X)
case("tree", DecisionTreeClassifier(max_depth=4, random_state=0), X, WORDS)
case("tree_two", DecisionTreeClassifier(max_depth=4, random_state=0), X, TWO)
case("tree_regressor", DecisionTreeRegressor(max_depth=4, random_state=0), X, REAL)
case("forest", RandomForestClassifier(7, max_depth=4, random_state=0), X, THREE, {RandomForestClassifier: PLAIN})
case("forest_two", RandomForestClassifier(7, max_depth=4, random_state=0), X, TWO)
case("forest_regressor", RandomForestRegressor(7, max_depth=4, random_state=0), X, REAL)
case("extra_trees", ExtraTreesClassifier(7, max_depth=4, random_state=0), X, WORDS)
case("boosting", GradientBoostingClassifier(n_estimators=5, random_state=0), X, THREE)
case("boosting_two", GradientBoostingClassifier(n_estimators=5, random_state=0), X, TWO)
case("boosting_regressor", GradientBoostingRegressor(n_estimators=5, random_state=0), X, REAL)
case("ada_boost", AdaBoostClassifier(n_estimators=3, random_state=0), X, THREE)
case("isolation_forest", IsolationForest(n_estimators=4, random_state=0), X)
case("voting", VotingClassifier([("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=3))], flatten_transform=False), X, THREE)
case("linear_regression", make_pipeline(MinMaxScaler(), PolynomialFeatures(2), LinearRegression()), X, REAL)
case("ridge", make_pipeline(RobustScaler(), PCA(3), Ridge()), X, REAL)
case("gaussian_bayes", GaussianNB(), X, THREE)
case("bernoulli_bayes", BernoulliNB(), X, THREE)
case("multinomial_bayes", make_pipeline(MinMaxScaler(), MultinomialNB()), X, THREE)
case("neighbors", KNeighborsClassifier(3), X, THREE)
case("neighbors_regressor", KNeighborsRegressor(3), X, REAL)
case("perceptron", MLPClassifier((5,), max_iter=20, random_state=0), X, THREE)
case("perceptron_two", MLPClassifier((5,), max_iter=20, random_state=0), X, TWO)
case("perceptron_regressor", MLPRegressor(hidden_layer_sizes=(5,), max_iter=20, random_state=0), X, REAL)
case("discriminant", LinearDiscriminantAnalysis(), X, THREE)
case("means", KMeans(3, n_init=1, random_state=0), X)
case("scalers", make_pipeline(StandardScaler(), MaxAbsScaler(), Normalizer("l1"), Normalizer("max"), Binarizer(threshold=0.1)), X)
case("bins", KBinsDiscretizer(3, encode="onehot-dense"), X)
case("best", SelectKBest(k=2), X, THREE)
HOLES = X.copy()
HOLES[::3, 1] = np.nan
case("imputer", make_pipeline(SimpleImputer(), LogisticRegression()), HOLES, TWO)
case("double_forest", RandomForestRegressor(3, max_depth=3, random_state=0), X.astype(np.float64), REAL)

# Columns of text, numbers and integers.
NAMES = np.array([["ant", "bee", "cow"][i] for i in RNG.integers(0, 3, ROWS)], dtype=object).reshape(-1, 1)
case("one_hot_words", OneHotEncoder(handle_unknown="ignore", sparse_output=False), NAMES, like=NAMES[:1].astype(str))
case("ordinal_words", OrdinalEncoder(), NAMES, like=NAMES[:1].astype(str))
AGES = RNG.integers(0, 5, (ROWS, 1))
case("one_hot_integers", OneHotEncoder(sparse_output=False), AGES, like=AGES[:1])
case("ordinal_integers", OrdinalEncoder(), AGES, like=AGES[:1])
encoder = LabelEncoder().fit(NAMES[:, 0])
model = to_onnx(encoder, initial_types=[("x", StringTensorType([None]))], target_opset=OPSETS)
save("label_encoder", model, {"x": NAMES[::7, 0]})

import pandas

table = pandas.DataFrame({"kind": NAMES[:, 0], "age": AGES[:, 0], "a": X[:, 0], "b": X[:, 1]})
columns = ColumnTransformer([("words", OneHotEncoder(), ["kind"]), ("numbers", StandardScaler(), ["a", "b"]), ("rest", "passthrough", ["age"])])
pipeline = make_pipeline(columns, LogisticRegression()).fit(table, WORDS)
types = [("kind", StringTensorType([None, 1])), ("age", Int64TensorType([None, 1])), ("a", FloatTensorType([None, 1])), ("b", FloatTensorType([None, 1]))]
model = to_onnx(pipeline, initial_types=types, target_opset=OPSETS)
rows = table[::7]
save("table", model, {"kind": rows[["kind"]].values, "age": rows[["age"]].values, "a": rows[["a"]].values.astype(np.float32), "b": rows[["b"]].values.astype(np.float32)})
