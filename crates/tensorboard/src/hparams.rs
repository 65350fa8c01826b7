//! Hyperparameters, and the metrics of runs with them.

use crate::file::now;
use crate::messages::any_value::Kind;
use crate::messages::event::What;
use crate::messages::h_params_plugin_data::Data;
use crate::messages::{
    AnyValue, Experiment, HParamInfo, HParamsPluginData, ListOfValues, MetricInfo, MetricName,
    SessionEndInfo, SessionStartInfo, Summary, SummaryMetadata, Value,
};
use crate::writer::{SummaryWriter, WriterOptions, plugin};
use kiln_tensor::{MaybeInt, Result, options};
use prost::Message;
use std::collections::BTreeMap;

/// The value of a hyperparameter.
#[derive(Clone, Debug, PartialEq)]
pub enum HParam {
    /// A number.
    Number(f64),
    /// A flag.
    Bool(bool),
    /// A name.
    Text(String),
}

macro_rules! from {
    (|$value:ident: $($from:ty),*| $made:expr) => {$(
        impl From<$from> for HParam {
            fn from($value: $from) -> HParam {
                $made
            }
        }
    )*};
}
from!(|n: i32, i64, u32, u64, usize, f32, f64| HParam::Number(n as f64));
from!(|b: bool| HParam::Bool(b));
from!(|text: &str, String| HParam::Text(text.to_string()));

impl HParam {
    fn message(&self) -> AnyValue {
        AnyValue {
            kind: Some(match self {
                HParam::Number(n) => Kind::NumberValue(*n),
                HParam::Bool(b) => Kind::BoolValue(*b),
                HParam::Text(text) => Kind::StringValue(text.clone()),
            }),
        }
    }

    /// TensorBoard's number of its type.
    fn dtype(&self) -> i32 {
        match self {
            HParam::Text(_) => 1,
            HParam::Bool(_) => 2,
            HParam::Number(_) => 3,
        }
    }
}

options! {
    /// The options of [`SummaryWriter::add_hparams_with`].
    HParams () {
        /// The values that hyperparameters can take, by their names.
        hparam_domain_discrete: BTreeMap<String, Vec<HParam>> = BTreeMap::new(),
        /// The run's folder within the writer's; if empty, the seconds since 1970.
        run_name: String = "",
        /// The step of the metrics.
        global_step: MaybeInt = MaybeInt(None),
    }
}

/// The status of a session that has succeeded.
const SUCCESS: i32 = 1;

impl SummaryWriter {
    /// Adds hyperparameters and the metrics of a run with them, in a folder of its own.
    ///
    /// ```no_run
    /// # let writer = kiln_tensorboard::SummaryWriter::new("runs")?;
    /// let hparams = [("lr", 0.1.into()), ("optimizer", "adam".into()), ("nesterov", true.into())];
    /// writer.add_hparams(hparams, [("hparam/accuracy", 0.9)])?;
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn add_hparams<'a>(
        &self,
        hparam_dict: impl IntoIterator<Item = (&'a str, HParam)>,
        metric_dict: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Result<()> {
        self.add_hparams_with(hparam_dict, metric_dict, HParams::new())
    }

    /// [`SummaryWriter::add_hparams`] with the name of the run, its step, or domains.
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn add_hparams_with<'a>(
        &self,
        hparam_dict: impl IntoIterator<Item = (&'a str, HParam)>,
        metric_dict: impl IntoIterator<Item = (&'a str, f64)>,
        options: HParams,
    ) -> Result<()> {
        let hparams: Vec<(&str, HParam)> = hparam_dict.into_iter().collect();
        let metrics: Vec<(&str, f64)> = metric_dict.into_iter().collect();
        let infos = hparams.iter().map(|(name, value)| HParamInfo {
            name: name.to_string(),
            r#type: value.dtype(),
            domain_discrete: options
                .hparam_domain_discrete
                .get(*name)
                .map(|domain| ListOfValues {
                    values: domain.iter().map(HParam::message).collect(),
                }),
        });
        let named = |tag: &str| MetricInfo {
            name: Some(MetricName { tag: tag.into() }),
        };
        let experiment = Experiment {
            hparam_infos: infos.collect(),
            metric_infos: metrics.iter().map(|(tag, _)| named(tag)).collect(),
        };
        let values = hparams
            .iter()
            .map(|(name, value)| (name.to_string(), value.message()));
        let start = SessionStartInfo {
            hparams: values.collect(),
        };
        let end = SessionEndInfo { status: SUCCESS };
        let run = match &options.run_name[..] {
            "" => format!("{:.6}", now()),
            name => name.to_string(),
        };
        let writer = SummaryWriter::new(WriterOptions::new(self.log_dir().join(run)))?;
        for (name, data) in [
            ("experiment", Data::Experiment(experiment)),
            ("session_start_info", Data::SessionStartInfo(start)),
            ("session_end_info", Data::SessionEndInfo(end)),
        ] {
            let data = HParamsPluginData {
                version: 0,
                data: Some(data),
            };
            let value = Value {
                tag: format!("_hparams_/{name}"),
                metadata: Some(SummaryMetadata {
                    plugin_data: Some(plugin("hparams", data.encode_to_vec())),
                }),
                value: None,
            };
            let what = What::Summary(Summary { value: vec![value] });
            writer.add_event("add_hparams", writer.log_dir(), options.global_step, what)?;
        }
        for (tag, value) in metrics {
            writer.add_scalar(tag, value, options.global_step)?;
        }
        writer.close()
    }
}
