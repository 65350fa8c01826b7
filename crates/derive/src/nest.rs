//! The derive macro `#[derive(Nest)]`.

use proc_macro2::{TokenStream, TokenTree};
use quote::{format_ident, quote};
use syn::{
    Data, DeriveInput, Error, Field, Fields, GenericParam, Generics, Ident, Index, Member, Result,
    parse_quote,
};

/// Expands to the impls for structures of tensors and of specs and, if the struct can hold anything in place of its
/// tensors, to that of `NestOf`.
pub(crate) fn expand(input: &DeriveInput, tensor: &TokenStream) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        let message = "only structs are structures of tensors";
        return Err(Error::new_spanned(&input.ident, message));
    };
    if let Some(lifetime) = input.generics.lifetimes().next() {
        let message = "a structure is also built of owned tensors: make the type of its tensors a \
                       parameter, `struct Batch<T = Tensor> { images: T, labels: T }`";
        return Err(Error::new_spanned(lifetime, message));
    }
    let parameters: Vec<&Ident> = input.generics.type_params().map(|p| &p.ident).collect();
    let mut out = TokenStream::new();
    for leaf in ["Tensor", "Spec"] {
        let leaf = format_ident!("{leaf}");
        let leaf = quote!(#tensor::#leaf);
        let nest = quote!(#tensor::Nest<#leaf>);
        let header = header(input, &nest, |p| quote!(<#p as #nest>::Owned));
        let (flatten, build) = (flatten(&data.fields), build(&data.fields, &nest));
        let Header {
            start,
            name,
            other: owned,
        } = header;
        out.extend(quote! {
            #[automatically_derived]
            #start {
                type Owned = #owned;

                #[track_caller]
                fn flatten_into(&self, flat: &mut #tensor::Flat<#leaf>) {
                    #flatten
                }

                fn build(feed: &mut #tensor::Feed<'_>) -> Self::Owned {
                    #name #build
                }
            }
        });
    }
    if !parameters.is_empty() && data.fields.iter().all(|f| mentions(f, &parameters)) {
        out.extend(of(input, &data.fields, tensor));
    }
    Ok(out)
}

/// The beginning of an impl.
struct Header {
    start: TokenStream,
    name: TokenStream,
    /// The struct with other type arguments.
    other: TokenStream,
}

fn header(
    input: &DeriveInput,
    bound: &TokenStream,
    other: impl Fn(&Ident) -> TokenStream,
) -> Header {
    let name = &input.ident;
    let mut generics: Generics = input.generics.clone();
    let arguments = input.generics.params.iter().map(|p| match p {
        GenericParam::Type(p) => other(&p.ident),
        GenericParam::Const(p) => {
            let ident = &p.ident;
            quote!(#ident)
        }
        GenericParam::Lifetime(p) => quote!(#p),
    });
    let owned = quote!(#name<#(#arguments),*>);
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#bound));
    }
    let (generics, arguments, clause) = generics.split_for_impl();
    Header {
        start: quote!(impl #generics #bound for #name #arguments #clause),
        name: quote!(#name),
        other: owned,
    }
}

fn member(i: usize, field: &Field) -> Member {
    match &field.ident {
        Some(name) => Member::Named(name.clone()),
        None => Member::Unnamed(Index::from(i)),
    }
}

/// Returns the statements that flatten the fields.
fn flatten(fields: &Fields) -> TokenStream {
    let statement = |(i, field): (usize, &Field)| {
        let member = member(i, field);
        let label = match &field.ident {
            Some(name) => name.to_string().trim_start_matches("r#").to_string(),
            None => i.to_string(),
        };
        quote! { flat.part(#label, &self.#member); }
    };
    fields.iter().enumerate().map(statement).collect()
}

/// Returns the fields, built from a feed.
fn build(fields: &Fields, nest: &TokenStream) -> TokenStream {
    let built = |(i, field): (usize, &Field)| {
        let (member, ty) = (member(i, field), &field.ty);
        quote! { #member: <#ty as #nest>::build(feed), }
    };
    let fields_built: TokenStream = fields.iter().enumerate().map(built).collect();
    quote!({ #fields_built })
}

/// Returns the impl of `NestOf`, for a struct whose fields all use its type parameters.
fn of(input: &DeriveInput, fields: &Fields, tensor: &TokenStream) -> TokenStream {
    let bound = quote!(#tensor::NestOf);
    let leaf = quote!(__Held);
    let Header { start, name, other } =
        header(input, &bound, |p| quote!(<#p as #bound>::Of<#leaf>));
    let built = |(i, field): (usize, &Field)| {
        let (member, ty) = (member(i, field), &field.ty);
        quote! { #member: <#ty as #bound>::build_of(feed, each), }
    };
    let built_fields: TokenStream = fields.iter().enumerate().map(built).collect();
    quote! {
        #[automatically_derived]
        #start {
            type Of<#leaf> = #other;

            fn build_of<#leaf>(
                feed: &mut #tensor::Feed<'_>,
                each: &mut dyn FnMut() -> #leaf,
            ) -> Self::Of<#leaf> {
                #name { #built_fields }
            }
        }
    }
}

/// True if a field's type names a type parameter.
fn mentions(field: &Field, parameters: &[&Ident]) -> bool {
    fn any(tokens: TokenStream, parameters: &[&Ident]) -> bool {
        tokens.into_iter().any(|t| match t {
            TokenTree::Ident(name) => parameters.iter().any(|p| **p == name),
            TokenTree::Group(group) => any(group.stream(), parameters),
            _ => false,
        })
    }
    let ty = &field.ty;
    any(quote!(#ty), parameters)
}
