//! `#[on_cells]`.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{Generics, Ident, Result, ReturnType, Token, Type, Visibility, parenthesized};

/// What is left of a method without its body.
pub(crate) struct Method {
    /// `cfg` alone of its attributes.
    cfg: Vec<Group>,
    public: bool,
    pub(crate) name: Ident,
    generics: Generics,
    /// The arguments behind `&self`; `None` if there is no such receiver.
    pub(crate) arguments: Option<Vec<(Ident, Type)>>,
    output: ReturnType,
}

impl Parse for Method {
    fn parse(input: ParseStream<'_>) -> Result<Method> {
        let mut cfg = Vec::new();
        while input.parse::<Option<Token![#]>>()?.is_some() {
            let attribute: Group = input.parse()?;
            if attribute.stream().to_string().starts_with("cfg") {
                cfg.push(attribute);
            }
        }
        let visibility: Visibility = input.parse()?;
        input.parse::<Token![fn]>()?;
        let (name, mut generics) = (input.parse()?, input.parse::<Generics>()?);
        let content;
        parenthesized!(content in input);
        let receiver = content.peek(Token![&]) && content.peek2(Token![self]);
        let mut arguments = Vec::new();
        if receiver {
            content.parse::<Token![&]>()?;
            content.parse::<Token![self]>()?;
            while content.parse::<Option<Token![,]>>()?.is_some() && !content.is_empty() {
                content.parse::<Option<Token![mut]>>()?;
                let argument = content.parse()?;
                content.parse::<Token![:]>()?;
                arguments.push((argument, content.parse()?));
            }
        }
        content.parse::<TokenStream>()?;
        let output = input.parse()?;
        generics.where_clause = input.parse()?;
        input.parse::<Group>()?;
        Ok(Method {
            cfg,
            public: matches!(visibility, Visibility::Public(_)),
            name,
            generics,
            arguments: receiver.then_some(arguments),
            output,
        })
    }
}

/// The methods of an impl.
struct Methods(Vec<Method>);

impl Parse for Methods {
    fn parse(input: ParseStream<'_>) -> Result<Methods> {
        let mut methods = Vec::new();
        while !input.is_empty() {
            methods.push(input.parse()?);
        }
        Ok(Methods(methods))
    }
}

/// The impl, and one of `Var` with its public methods that take `&self`.
pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let body = item.clone().into_iter().last();
    let Some(TokenTree::Group(body)) = body.filter(is_block) else {
        return Err(syn::Error::new_spanned(
            &item,
            "expected `impl Tensor { .. }`",
        ));
    };
    let Methods(methods) = syn::parse2(body.stream())?;
    let mut forwarded = TokenStream::new();
    for method in methods.iter().filter(|m| m.public) {
        let Method {
            cfg,
            name,
            generics,
            output,
            ..
        } = method;
        let Some(arguments) = &method.arguments else {
            continue;
        };
        let names = arguments.iter().map(|a| &a.0);
        let declared = arguments.iter().map(|(name, ty)| quote!(#name: #ty));
        let doc = format!("[`Tensor::{name}`] of what the cell holds.");
        let bounds = &generics.where_clause;
        forwarded.extend(quote! {
            #(# #cfg)*
            #[doc = #doc]
            #[track_caller]
            pub fn #name #generics(&self, #(#declared),*) #output #bounds {
                self.get().#name(#(#names),*)
            }
        });
    }
    Ok(quote! {
        #item

        impl crate::Var {
            #forwarded
        }
    })
}

fn is_block(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(g) if g.delimiter() == Delimiter::Brace)
}
