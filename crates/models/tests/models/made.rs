//! The networks, by the names of their constructors in Python.

use kiln::nn::{Forward, Lambda, Module};
use kiln::{DType, Result, Tensor};
use kiln_models::*;

/// A network that takes images, or tokens.
pub trait Network: Module {
    /// Returns its scores and other results, by Python's names.
    fn results(&self, inputs: &Inputs) -> Result<Vec<(&'static str, Tensor)>>;

    /// Returns the network as a module.
    fn module(&self) -> &dyn Module;

    /// [`Module::set_submodule`].
    fn put(&self, path: &str, module: Lambda) -> Result<()>;

    /// Returns a copy in f64.
    fn in_f64(&self) -> Result<Box<dyn Network>>;
}

/// The inputs of a network.
pub struct Inputs {
    /// Images or tokens.
    pub x: Tensor,
    /// A mask that is 0 at padding.
    pub mask: Tensor,
    /// Kinds of tokens.
    pub kinds: Tensor,
}

macro_rules! networks {
    ($($ty:ty |$model:ident, $inputs:ident| $results:expr;)*) => {$(
        impl Network for $ty {
            fn results(&self, $inputs: &Inputs) -> Result<Vec<(&'static str, Tensor)>> {
                let $model = self;
                Ok($results)
            }

            fn module(&self) -> &dyn Module {
                self
            }

            fn put(&self, path: &str, module: Lambda) -> Result<()> {
                self.set_submodule(path, module)
            }

            fn in_f64(&self) -> Result<Box<dyn Network>> {
                Ok(Box::new(self.deep_copy_as(DType::F64)?))
            }
        }
    )*};
}

macro_rules! of_images {
    ($($ty:ty),*) => {
        networks! {$($ty |model, inputs| vec![("logits", model.call(&inputs.x))];)*}
    };
}
of_images!(
    AlexNet,
    ConvNeXt,
    DenseNet,
    EfficientNet,
    Gpt,
    MobileNetV2,
    MobileNetV3,
    ResNet,
    ShuffleNetV2,
    SqueezeNet,
    UNet,
    Vgg,
    VisionTransformer
);
networks! {
    GoogLeNet |model, inputs| {
        let seen = model.outputs(&inputs.x)?;
        let aux = [("aux_logits2", seen.aux_logits2), ("aux_logits1", seen.aux_logits1)];
        let aux = aux.into_iter().filter_map(|(name, t)| Some((name, t?)));
        [("logits", seen.logits)].into_iter().chain(aux).collect()
    };
    Inception3 |model, inputs| {
        let seen = model.outputs(&inputs.x)?;
        let aux = seen.aux_logits.map(|t| ("aux_logits", t));
        [("logits", seen.logits)].into_iter().chain(aux).collect()
    };
    GPT2Model |model, inputs| {
        vec![("last_hidden_state", model.call((&inputs.x, &inputs.mask)))]
    };
    GPT2LMHeadModel |model, inputs| vec![("logits", model.call((&inputs.x, &inputs.mask)))];
    BertModel |model, inputs| {
        let (states, pooled) = model.call(bert(inputs));
        let pooled = pooled.map(|t| ("pooler_output", t));
        [("last_hidden_state", states)].into_iter().chain(pooled).collect()
    };
    BertForMaskedLM |model, inputs| vec![("logits", model.call(bert(inputs)))];
    BertForSequenceClassification |model, inputs| vec![("logits", model.call(bert(inputs)))];
}

fn bert(inputs: &Inputs) -> BertInputs {
    let [x, mask, kinds] = [&inputs.x, &inputs.mask, &inputs.kinds].map(Tensor::clone);
    BertInputs::new(x)
        .attention_mask(mask)
        .token_type_ids(kinds)
}

type Made = Result<Box<dyn Network>>;

fn boxed(network: Result<impl Network>) -> Made {
    Ok(Box::new(network?))
}

macro_rules! by_name {
    ($name:expr, $classes:expr; $($ty:ident: $($maker:ident)*;)*) => {
        match $name {
            $($(stringify!($maker) => boxed($ty::$maker($classes)),)*)*
            other => panic!("there is no {other}"),
        }
    };
}

/// Makes the network in its published size; for text, in the size of the default configuration.
pub fn published(name: &str, classes: usize) -> Made {
    match name {
        "alexnet" => boxed(AlexNet::new(classes)),
        "mobilenet_v2" => boxed(MobileNetV2::new(classes)),
        "mobilenet_v3_small" => boxed(MobileNetV3::small(classes)),
        "mobilenet_v3_large" => boxed(MobileNetV3::large(classes)),
        "googlenet" => boxed(GoogLeNet::new(GoogLeNetConfig {
            classes,
            transform_input: true,
            ..GoogLeNetConfig::default()
        })),
        "inception_v3" => boxed(Inception3::new(Inception3Config {
            classes,
            transform_input: true,
            ..Inception3Config::default()
        })),
        name if name.starts_with("GPT2") => gpt2(name, GPT2Config::default()),
        name if name.starts_with("Bert") => bert_of(name, BertConfig::default(), 2),
        name => by_name! { name, classes;
            ResNet: resnet18 resnet34 resnet50 resnet101 resnet152 resnext50_32x4d resnext101_32x8d
                resnext101_64x4d wide_resnet50_2 wide_resnet101_2;
            Vgg: vgg11 vgg13 vgg16 vgg19 vgg11_bn vgg13_bn vgg16_bn vgg19_bn;
            SqueezeNet: squeezenet1_0 squeezenet1_1;
            EfficientNet: efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4
                efficientnet_b5 efficientnet_b6 efficientnet_b7;
            DenseNet: densenet121 densenet161 densenet169 densenet201;
            ShuffleNetV2: shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0;
            VisionTransformer: vit_b_16 vit_b_32 vit_l_16 vit_l_32;
            ConvNeXt: convnext_tiny convnext_small convnext_base convnext_large;
        },
    }
}

/// Makes the network in the size of the stored results.
pub fn small(name: &str) -> Made {
    const CLASSES: usize = 10;
    let vit = VisionTransformerConfig {
        classes: CLASSES,
        ..VisionTransformerConfig::default()
    };
    match name {
        "vit" => boxed(VisionTransformer::new(VisionTransformerConfig {
            image_size: 24,
            patch_size: 8,
            num_layers: 3,
            num_heads: 3,
            hidden_dim: 36,
            mlp_dim: 80,
            representation_size: Some(20),
            ..vit
        })),
        "vit_b_16" => boxed(VisionTransformer::new(VisionTransformerConfig {
            image_size: 48,
            ..vit
        })),
        "vit_b_32" => boxed(VisionTransformer::new(VisionTransformerConfig {
            image_size: 64,
            patch_size: 32,
            ..vit
        })),
        "unet" => boxed(UNet::new(UNetConfig {
            channels: 2,
            classes: 3,
            width: 6,
            levels: 3,
        })),
        "gpt" => boxed(Gpt::new(GptConfig {
            vocabulary: 61,
            context: 16,
            layers: 2,
            block: TransformerConfig {
                width: 36,
                heads: 3,
                hidden: 80,
                dropout: 0.0,
                norm_first: true,
            },
        })),
        name if name.starts_with("GPT2") => gpt2(name, small_gpt2()),
        name if name.starts_with("Bert") => bert_of(name, small_bert(), 5),
        name => published(name, CLASSES),
    }
}

/// The configuration of the stored results.
pub fn small_gpt2() -> GPT2Config {
    GPT2Config {
        vocab_size: 61,
        n_positions: 16,
        n_embd: 36,
        n_layer: 3,
        n_head: 3,
        n_inner: Some(80),
        resid_pdrop: 0.0,
        embd_pdrop: 0.0,
        attn_pdrop: 0.0,
        ..GPT2Config::default()
    }
}

/// The configuration of the stored results.
pub fn small_bert() -> BertConfig {
    BertConfig {
        vocab_size: 61,
        hidden_size: 36,
        num_hidden_layers: 3,
        num_attention_heads: 3,
        intermediate_size: 80,
        hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0,
        max_position_embeddings: 16,
        ..BertConfig::default()
    }
}

fn gpt2(name: &str, config: GPT2Config) -> Made {
    match name {
        "GPT2Model" => boxed(GPT2Model::new(config)),
        "GPT2LMHeadModel" => boxed(GPT2LMHeadModel::new(config)),
        other => panic!("there is no {other}"),
    }
}

fn bert_of(name: &str, config: BertConfig, labels: usize) -> Made {
    match name {
        "BertModel" => boxed(BertModel::new(config)),
        "BertForMaskedLM" => boxed(BertForMaskedLM::new(config)),
        "BertForSequenceClassification" => {
            boxed(BertForSequenceClassification::new(config, labels))
        }
        other => panic!("there is no {other}"),
    }
}
