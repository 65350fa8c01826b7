//! The derive macros `#[derive(Module)]` and `#[derive(Nest)]`; see `kiln_nn::Module` and `kiln_tensor::Nest`. The
//! attribute `#[on_cells]` gives cells the methods of tensors.

mod cells;
mod nest;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, Index, Member, Path, Result, parse_quote,
};

/// Implements `Module` for a struct: its fields are its parameters, buffers and children, under the
/// fields' names (`0`, `1`, … in a tuple struct).
///
/// - A `Var` is a parameter if it was made as one (`Var::parameter`), else a buffer. `#[param]` and `#[buffer]` on
///   the field override this.
/// - A field whose type is a module is a child. `Option`, `Vec`, `Box` and `Arc` of these hold their contents; the
///   elements of a `Vec` are called `field.0`, `field.1`, …
/// - A field of type `Mode` gives the module a training mode. A field of type `Hooks` allows hooks to be registered.
/// - Numbers, `bool`, strings and other plain data hold nothing. `#[skip]` leaves out a field of any
///   type; copies of the module clone it.
///
/// `Display` prints the module and its children, as PyTorch does. `#[module(extra_repr)]` on the struct prints the
/// result of its own method `fn extra_repr(&self) -> String` in the parentheses after its name.
/// `#[module(reset_parameters)]` resets it with its own method `fn reset_parameters(&self) -> Result<()>`.
/// `#[module(name)]` takes the name from `fn name(&self) -> &str`. `#[module(path = ..)]` names the crate of modules,
/// for macros that write structs.
#[proc_macro_derive(Module, attributes(module, param, buffer, skip))]
pub fn module(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    derive(input, quote!(::kiln_nn))
}

/// `Module` for users of the crate `kiln`, which calls this one `kiln::nn`.
#[doc(hidden)]
#[proc_macro_derive(KilnModule, attributes(module, param, buffer, skip))]
pub fn kiln_module(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    derive(input, quote!(::kiln::nn))
}

/// Implements `Nest` for a struct: a structure of its fields, under their names. If the type of its tensors is a
/// parameter, `struct Batch<T = Tensor> { images: T, labels: T }`, the same struct can also hold references
/// (`Batch<&Tensor>`), specs (`Batch<Spec>`), and the results of `jacobian` and `hessian`.
#[proc_macro_derive(Nest)]
pub fn nest(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    nested(input, quote!(::kiln_tensor))
}

/// `Nest` for users of the crate `kiln`.
#[doc(hidden)]
#[proc_macro_derive(KilnNest)]
pub fn kiln_nest(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    nested(input, quote!(::kiln))
}

/// For an `impl Tensor` of the crate `kiln-tensor`: its public methods become methods of `Var` too, which apply to the
/// tensor that the cell holds.
///
/// All of its methods are `#[track_caller]`. Those of `&self` take their arguments converted: the body sees a `&Tensor`
/// for an `impl AsTensor`, an `Option<&Tensor>` for an `impl MaybeTensor`, a `Vec<Dim>` for an `impl IntoShape`, a
/// `Vec<Index>` for an `impl Indices`, an `i64` for an `impl Into<Int>`, and a `T` for any other `impl Into<T>`. It is
/// compiled once, whatever types callers pass.
///
/// `#[autocast]` on a method casts its operands inside `autocast`, by the rule of its name in the lists there. An
/// argument that is a struct of options with operands must be named, `#[autocast(options)]`.
#[doc(hidden)]
#[proc_macro_attribute]
pub fn on_cells(
    _: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    cells::expand(item.into())
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

fn nested(input: proc_macro::TokenStream, tensor: TokenStream) -> proc_macro::TokenStream {
    syn::parse(input)
        .and_then(|input| nest::expand(&input, &tensor))
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

fn derive(input: proc_macro::TokenStream, nn: TokenStream) -> proc_macro::TokenStream {
    syn::parse(input)
        .and_then(|input| expand(input, &nn))
        .unwrap_or_else(Error::into_compile_error)
        .into()
}

fn expand(mut input: DeriveInput, nn: &TokenStream) -> Result<TokenStream> {
    let Own { methods: own, path } = own(&input.attrs)?;
    let nn = &path.unwrap_or_else(|| nn.clone());
    let Data::Struct(data) = &input.data else {
        let message = "only structs are modules; hold the alternatives as Option fields or a Box<dyn Forward>";
        return Err(Error::new_spanned(&input.ident, message));
    };
    let Fieldwise {
        members,
        copies,
        hooks,
    } = fieldwise(&data.fields, nn)?;
    let mut methods = TokenStream::new();
    let (name, label) = (&input.ident, input.ident.to_string());
    let mut named = quote! { fn name(&self) -> &str { #label } };
    for name in own {
        match name.as_str() {
            "name" => named = quote! { fn name(&self) -> &str { Self::name(self) } },
            "extra_repr" => methods.extend(quote! {
                fn extra_repr(&self) -> ::std::string::String { Self::extra_repr(self) }
            }),
            _ => methods.extend(quote! {
                fn reset_parameters(&self) -> #nn::Result<()> { Self::reset_parameters(self) }
            }),
        }
    }
    let name = name.clone();
    for parameter in input.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#nn::Module));
    }
    let (generics, arguments, clause) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics #nn::Module for #name #arguments #clause {
            fn as_module(&self) -> &dyn #nn::Module { self }
            #named
            fn members(&self) -> #nn::Members<'_> {
                #[allow(unused_mut)]
                let mut members = #nn::Members::new();
                #members
                members
            }
            fn hooks(&self) -> ::std::option::Option<&#nn::Hooks> {
                #hooks
                ::std::option::Option::None
            }
            #[track_caller]
            fn copy_with(&self, copies: &mut #nn::Copies) -> #nn::Result<Self> {
                #[allow(unused_imports)]
                use #nn::derive::{SkippedClone as _, SkippedOther as _};
                let _ = &copies;
                ::std::result::Result::Ok(Self { #copies })
            }
            #methods
        }

        impl #generics ::std::fmt::Display for #name #arguments #clause {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(#nn::Module::as_module(self), f)
            }
        }
    })
}

/// The code generated for the fields.
#[derive(Default)]
struct Fieldwise {
    /// Statements that add the fields to `members`.
    members: TokenStream,
    /// The fields of a copy.
    copies: TokenStream,
    /// Statements that return the hooks, if a field holds them.
    hooks: TokenStream,
}

fn fieldwise(fields: &Fields, nn: &TokenStream) -> Result<Fieldwise> {
    let mut out = Fieldwise::default();
    for (i, field) in fields.iter().enumerate() {
        let member = match &field.ident {
            Some(name) => Member::Named(name.clone()),
            None => Member::Unnamed(Index::from(i)),
        };
        let label = match &field.ident {
            Some(name) => name.to_string().trim_start_matches("r#").to_string(),
            None => i.to_string(),
        };
        let role = role(field)?;
        let ty = &field.ty;
        if let Role::Skipped = role {
            out.copies.extend(quote! {
                #member: (&#nn::derive::Skipped(&self.#member, #label)).copied()?,
            });
            continue;
        }
        out.copies.extend(quote! {
            #member: <#ty as #nn::Field>::copy_with(&self.#member, copies)?,
        });
        out.hooks.extend(quote! {
            if let ::std::option::Option::Some(hooks) = <#ty as #nn::Field>::hooks(&self.#member) {
                return ::std::option::Option::Some(hooks);
            }
        });
        let add = quote! { <#ty as #nn::Field>::add_to(&self.#member, #label, &mut members); };
        out.members.extend(match role {
            Role::Explicit { parameter } => quote! {
                let before = members.len();
                #add
                members.set_role(before, #parameter);
            },
            _ => add,
        });
    }
    Ok(out)
}

enum Role {
    ByType,
    Skipped,
    Explicit { parameter: bool },
}

fn role(field: &Field) -> Result<Role> {
    let mut role = Role::ByType;
    for attribute in &field.attrs {
        let member_role = if attribute.path().is_ident("skip") {
            Role::Skipped
        } else if attribute.path().is_ident("param") {
            Role::Explicit { parameter: true }
        } else if attribute.path().is_ident("buffer") {
            Role::Explicit { parameter: false }
        } else {
            continue;
        };
        if !matches!(role, Role::ByType) {
            let message = "a field is one of #[param], #[buffer] and #[skip]";
            return Err(Error::new_spanned(attribute, message));
        }
        role = member_role;
    }
    Ok(role)
}

/// The arguments of `#[module(..)]`.
#[derive(Default)]
struct Own {
    /// The struct's own methods.
    methods: Vec<String>,
    /// The name of the crate of modules in the user's code.
    path: Option<TokenStream>,
}

fn own(attributes: &[Attribute]) -> Result<Own> {
    let mut own = Own::default();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("path") {
                own.path = Some(meta.value()?.parse::<Path>()?.into_token_stream());
                return Ok(());
            }
            let known = ["name", "extra_repr", "reset_parameters"];
            let name = known.iter().find(|name| meta.path.is_ident(name));
            let name = name.ok_or_else(|| meta.error(format!("expected one of {known:?}")))?;
            own.methods.push(name.to_string());
            Ok(())
        })?;
    }
    Ok(own)
}
