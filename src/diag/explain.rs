//! The page of each code: what it means, an example, the cure. The texts are the files of `docs/errors/`.

macro_rules! pages {
    ($($code:literal)*) => {
        /// The page of a code, in Markdown.
        pub fn page(code: &str) -> Option<&'static str> {
            match code {
                $($code => Some(include_str!(concat!("../../docs/errors/", $code, ".md"))),)*
                _ => None,
            }
        }
    };
}

pages! {
    "E0101" "E0102" "E0103" "E0104" "E0105" "E0106" "E0201" "E0202" "E0203" "E0204" "E0205" "E0206" "E0207" "E0301"
    "E0302" "E0303" "E0304" "E0305" "E0306" "E0307" "E0308" "E0309" "E0310" "E0311" "E0312" "E0313" "E0314" "E0401"
    "E0402" "E0403" "E0404" "E0405" "E0406" "E0407" "E0408" "E0409" "E0410" "E0501" "E0502" "E0503" "E0504" "E0505"
    "E0506" "E0507" "E0508" "E0509" "E0601" "E0602" "E0603" "E0604" "E0605" "E0606" "E0701" "E0702" "E0703" "E0704" "E0705" "E0706"
    "E0707" "E0708" "E0709" "E0710" "E0711" "E0801" "E0802" "E0803" "E0804" "E0805" "E0806" "E0807" "E0808" "E0809"
    "E0810" "E0811" "E0812" "E0813" "E0814" "E0815" "E0816" "E0817" "E0818" "E0901" "E0902" "W0001" "W0002" "W0003" "W0004" "W0005" "W0006"
    "W0007" "W0009" "W0010" "W0011" "W0012" "W0013" "W0014" "W0015" "W0016" "W0017" "W0018"
}
