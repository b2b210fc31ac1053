//! Memory over time as one page that needs nothing else: stacked by category, what is under the pointer is told, the wheel zooms.

use super::html::plain;
use super::table::bytes;
use serde_json::{Value, json};

/// What a page shows.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    pub title: String,
    /// Names, in the order in which they are stacked.
    pub categories: Vec<&'static str>,
    /// Those that need most first.
    pub ranks: Vec<Ranks>,
}

/// Ranks that are alike.
#[derive(Clone, PartialEq, Debug)]
pub struct Ranks {
    /// `ranks 0 to 3`
    pub name: String,
    /// Bytes that each takes.
    pub peak: usize,
    pub moments: Vec<Moment>,
    /// What is there at the peak, the largest first.
    pub largest: Vec<Row>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Moment {
    /// `B0.3`
    pub action: String,
    pub value: String,
    /// By category, in the page's order.
    pub bytes: Vec<usize>,
    /// Of so many microbatches activations are kept.
    pub in_flight: usize,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    pub bytes: usize,
    pub category: &'static str,
    pub value: String,
    pub layer: String,
    pub microbatch: Option<u32>,
    /// `gpt.pta:12:5`; may be empty.
    pub place: String,
}

const STYLE: &str = "body{font:14px/1.45 system-ui,sans-serif;margin:1.5em;color:#1c2330}h1{font-size:1.2em}\
canvas{width:100%;height:340px;display:block;border:1px solid #d8dde6}p{margin:.4em 0}\
#tip{position:fixed;pointer-events:none;background:#1c2330;color:#fff;padding:.3em .6em;border-radius:4px;\
font-size:12.5px;white-space:pre;display:none}.key{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .7em;border-bottom:1px solid #d8dde6;text-align:left}\
th{background:#eef1f6}td.n{text-align:right;font-variant-numeric:tabular-nums}";

/// Hues of categories, by their place in the page's list.
const COLOURS: [&str; 9] =
    ["#4e79a7", "#76b7b2", "#e15759", "#b07aa1", "#9c755f", "#f2b134", "#ff9da7", "#a9b3c1", "#59a14f"];

/// Draws the chosen ranks; memory that is taken in all is a line above what is in use.
const SCRIPT: &str = r"
const c=document.getElementById('c'),g=c.getContext('2d'),tip=document.getElementById('tip'),pick=document.getElementById('pick');
const L=84,H=340,B=20;let k=D.ranks[0],from=0,to=1;
const n=v=>v.toLocaleString('en'),sum=m=>m[3].reduce((a,b)=>a+b,0);
const x=i=>L+(i-from)/(to-from)*(c.clientWidth-L),at=px=>Math.floor(from+(px-L)/(c.clientWidth-L)*(to-from));
function draw(){const w=c.clientWidth,r=devicePixelRatio||1;c.width=w*r;c.height=H*r;g.setTransform(r,0,0,r,0,0);
g.clearRect(0,0,w,H);g.font='11px system-ui,sans-serif';const most=Math.max(k.peak,1)*1.04,y=b=>(H-B)*(1-b/most);
for(let i=Math.max(0,Math.floor(from));i<Math.min(k.moments.length,to);i++){let b=0;k.moments[i][3].forEach((v,j)=>{if(!v)return;
const x0=Math.max(L,x(i)),x1=x(i+1),y0=y(b+v);g.fillStyle=D.colours[j];g.fillRect(x0,y0,Math.max(.4,x1-x0),y(b)-y0);b+=v})}
g.fillStyle='#1c2330';g.fillRect(L,y(k.peak),w-L,1);g.textAlign='right';g.textBaseline='middle';
[0,.25,.5,.75,1].forEach(s=>g.fillText(D.short(k.peak*s),L-6,y(k.peak*s)));g.textAlign='left';
if(k.moments[0]){const a=k.moments[Math.max(0,Math.floor(from))],b=k.moments[Math.min(k.moments.length,Math.ceil(to))-1];
g.fillText(a[0],L,H-B/2);g.textAlign='right';g.fillText(b[0],w-4,H-B/2)}}
D.short=v=>{let u=['B','KiB','MiB','GiB','TiB'],i=0;while(v>=1024&&i<4){v/=1024;i++}return v.toPrecision(3)+' '+u[i]};
c.onwheel=e=>{e.preventDefault();const all=k.moments.length,m=from+(e.offsetX-L)/(c.clientWidth-L)*(to-from),f=Math.exp(e.deltaY*.0015);
from=Math.max(0,m-(m-from)*f);to=Math.min(all,m+(to-m)*f);if(to-from<4)to=Math.min(all,from+4);draw()};
c.ondblclick=()=>{from=0;to=k.moments.length||1;draw()};
c.onmousemove=e=>{const i=at(e.offsetX),m=k.moments[i];tip.style.display='none';if(!m||e.offsetX<L)return;
tip.textContent=m[0]+'  '+m[1]+'\n'+n(sum(m))+' bytes'+(m[2]?'\nactivations of '+m[2]+' microbatches':'')
+m[3].map((v,j)=>v?'\n'+D.categories[j]+' '+n(v):'').join('');tip.style.display='block';
tip.style.left=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8)+'px';tip.style.top=e.clientY+14+'px'};
c.onmouseleave=()=>tip.style.display='none';onresize=draw;
function show(i){k=D.ranks[i];document.querySelectorAll('tbody').forEach((b,j)=>b.hidden=i!=j);c.ondblclick()}
pick.onchange=()=>show(pick.selectedIndex);show(0)";

impl Page {
    pub fn html(&self) -> String {
        let ranks: Vec<Value> = self.ranks.iter().map(Ranks::data).collect();
        let data = json!({"categories": self.categories, "colours": &COLOURS[..self.categories.len()], "ranks": ranks});
        // A text in the data must not end the script.
        let data = data.to_string().replace('<', "\\u003c");
        let title = plain(&self.title);
        let key = |(name, colour): (&&str, &&str)| {
            format!("<span class=\"key\" style=\"background:{colour}\"></span>{}", name.replace('_', " "))
        };
        let keys: String = self.categories.iter().zip(&COLOURS).map(key).collect();
        let option = |r: &Ranks| format!("<option>{}: {} bytes</option>", plain(&r.name), bytes(r.peak as f64));
        let options: String = self.ranks.iter().map(option).collect();
        let tables: String = self.ranks.iter().map(Ranks::table).collect();
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\n\
             <body><h1>{title}</h1>\n<p><select id=\"pick\">{options}</select>{keys}</p>\n\
             <canvas id=\"c\"></canvas><div id=\"tip\"></div>\n<p>line: what a rank takes; wheel: zoom; double click: all</p>\n\
             <table><thead><tr><th>bytes at the peak</th><th>category</th><th>microbatch</th><th>value</th><th>layer</th>\
             <th>source</th></tr></thead>\n{tables}</table>\n<script>const D={data};{SCRIPT}</script></body></html>\n"
        )
    }
}

impl Ranks {
    fn data(&self) -> Value {
        let moment = |m: &Moment| json!([m.action, m.value, m.in_flight, m.bytes]);
        json!({"peak": self.peak, "moments": self.moments.iter().map(moment).collect::<Vec<_>>()})
    }

    fn table(&self) -> String {
        let row = |r: &Row| {
            let microbatch = r.microbatch.map_or_else(String::new, |m| m.to_string());
            let cells =
                [r.category, &microbatch, &r.value, &r.layer, &r.place].map(|t| format!("<td>{}</td>", plain(t)));
            format!("<tr><td class=\"n\">{}</td>{}</tr>\n", bytes(r.bytes as f64), cells.concat())
        };
        format!("<tbody hidden>{}</tbody>\n", self.largest.iter().map(row).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_every_moment_and_no_markup_of_the_program() {
        let moment = Moment { action: "F0.1".into(), value: "</script>".into(), bytes: vec![4, 8], in_flight: 2 };
        let row = Row {
            bytes: 8,
            category: "activations",
            value: "<b>".into(),
            layer: "block.0".into(),
            microbatch: Some(1),
            place: "a.pta:1:2".into(),
        };
        let ranks = Ranks { name: "rank 0".into(), peak: 12, moments: vec![moment; 3], largest: vec![row] };
        let page = Page { title: "x & y".into(), categories: vec!["parameters", "activations"], ranks: vec![ranks] };
        let html = page.html();
        assert_eq!(html.matches("[\"F0.1\",").count(), 3);
        assert_eq!(html.matches("</script>").count(), 1);
        assert!(html.contains("<td>&lt;b&gt;</td><td>block.0</td><td>a.pta:1:2</td>") && html.contains("x &amp; y"));
    }
}
