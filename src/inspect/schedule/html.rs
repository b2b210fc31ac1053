//! The timeline as one page that needs nothing else: the wheel zooms, dragging moves, and what is under the pointer is told.

use super::Timeline;
use super::svg::colour;
use crate::inspect::html::plain;
use serde_json::json;

const STYLE: &str = "body{font:14px/1.45 system-ui,sans-serif;margin:1.5em;color:#1c2330}h1{font-size:1.2em}\
canvas{width:100%;display:block;cursor:grab;border:1px solid #d8dde6}\
#tip{position:fixed;pointer-events:none;background:#1c2330;color:#fff;padding:.3em .6em;border-radius:4px;\
font-size:12.5px;white-space:pre;display:none}p{margin:.4em 0}";

/// Draws ranks as rows, below each the memory that stays.
const SCRIPT: &str = r"
const c=document.getElementById('c'),g=c.getContext('2d'),tip=document.getElementById('tip');
const L=64,R=26,M=18,H=R+M+8;let from=0,to=D.makespan||1;
const x=t=>L+(t-from)/(to-from)*(c.clientWidth-L),t=px=>from+(px-L)/(c.clientWidth-L)*(to-from);
function at(list,time){let a=0,b=list.length;while(a<b){const m=a+b>>1;if(list[m][0]<=time)a=m+1;else b=m}return a-1}
function draw(){const w=c.clientWidth,r=devicePixelRatio||1,h=D.ranks.length*H+24;c.style.height=h+'px';c.width=w*r;c.height=h*r;
g.setTransform(r,0,0,r,0,0);g.clearRect(0,0,w,h);g.font='11px system-ui,sans-serif';g.textBaseline='middle';
D.ranks.forEach((k,i)=>{const y=i*H+4;g.fillStyle='#eef1f6';g.fillRect(L,y,w-L,R);
for(let n=Math.max(0,at(k.actions,from));n<k.actions.length;n++){const a=k.actions[n];if(a[0]>to)break;
const x0=Math.max(L,x(a[0])),x1=Math.min(w,x(a[1]));if(x1<=x0)continue;g.fillStyle=a[5];g.fillRect(x0,y,Math.max(.5,x1-x0-.5),R);
if(x1-x0>g.measureText(a[2]).width+2){g.fillStyle='#1c2330';g.textAlign='center';g.fillText(a[2],(x0+x1)/2,y+R/2)}}
g.fillStyle='#c9a227';let last=0,px=L;const y1=y+R+M;k.memory.concat([[D.makespan,0]]).forEach(m=>{const nx=Math.min(w,Math.max(L,x(m[0])));
const mh=D.most?last/D.most*M:0;if(nx>px)g.fillRect(px,y1-mh,nx-px,mh);px=nx;last=m[1]});
g.clearRect(0,y-2,L-2,H);g.fillStyle='#1c2330';g.textAlign='left';g.fillText('rank '+i,4,y+R/2);g.fillText('memory',4,y+R+M/2)});
g.fillStyle='#5b6577';g.textAlign='left';g.fillText(short(from),L,D.ranks.length*H+14);g.textAlign='right';
g.fillText(short(to)+' '+D.unit,w-4,D.ranks.length*H+14)}
const short=v=>String(+v.toPrecision(6));
c.onwheel=e=>{e.preventDefault();const m=t(e.offsetX),f=Math.exp(e.deltaY*.0015);let a=m-(m-from)*f,b=m+(to-m)*f;
if(b-a>D.makespan){a=0;b=D.makespan}if(a<0){b-=a;a=0}if(b>D.makespan){a-=b-D.makespan;b=D.makespan}from=Math.max(0,a);to=b;draw()};
let held=null;c.onmousedown=e=>{held=[e.offsetX,from,to]};onmouseup=()=>held=null;
c.onmousemove=e=>{if(held){const d=(held[0]-e.offsetX)/(c.clientWidth-L)*(held[2]-held[1]);
const s=Math.max(-held[1],Math.min(D.makespan-held[2],d));from=held[1]+s;to=held[2]+s;draw()}
const k=D.ranks[Math.floor(e.offsetY/H)],v=t(e.offsetX);tip.style.display='none';if(!k||e.offsetX<L)return;
const a=k.actions[at(k.actions,v)],m=k.memory[at(k.memory,v)],on=a&&v<a[1];
tip.textContent=(on?a[2]+'  stage '+a[3]+', microbatch '+a[4]+'\n'+short(a[0])+' to '+short(a[1])+' '+D.unit:'idle at '+short(v)+' '+D.unit)
+'\nmemory that stays: '+short(m?m[1]:0)+' '+D.held;tip.style.display='block';
tip.style.left=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8)+'px';tip.style.top=e.clientY+14+'px'};
c.onmouseleave=()=>tip.style.display='none';c.ondblclick=()=>{from=0;to=D.makespan;draw()};onresize=draw;draw()";

impl Timeline {
    pub fn html(&self) -> String {
        let title = plain(&self.title());
        let chunked = self.chunked();
        let s = &self.simulation;
        let rank = |rank: usize| {
            let chunks = self.table.stages_of(rank).len();
            let actions: Vec<_> = self
                .actions(rank)
                .map(|(a, [start, end])| {
                    let fill = colour(a.op, self.chunk(rank, a), chunks);
                    json!([start, end, self.name(a, chunked), a.stage, a.microbatch, fill])
                })
                .collect();
            json!({"actions": actions, "memory": s.memory[rank]})
        };
        let most = s.peak_memory.iter().copied().fold(0.0, f64::max);
        let data = json!({
            "makespan": s.makespan,
            "unit": self.unit,
            "held": self.held,
            "most": most,
            "ranks": (0..self.table.ranks.len()).map(rank).collect::<Vec<_>>(),
        });
        // A text in the data must not end the script.
        let data = data.to_string().replace('<', "\\u003c");
        let peaks: Vec<String> = s.peak_activations.iter().map(usize::to_string).collect();
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\n\
             <body><h1>{title}</h1>\n<p>makespan <b>{}</b> {}, bubble <b>{:.2} %</b>, activations of a stage at most, by rank: {}; \
             {} obligations of the certificate</p>\n<p>wheel: zoom; drag: move; double click: all</p>\n\
             <canvas id=\"c\"></canvas><div id=\"tip\"></div>\n<script>const D={data};{SCRIPT}</script></body></html>\n",
            super::time(s.makespan),
            self.unit,
            100.0 * s.bubble_fraction(),
            peaks.join(" "),
            self.certificate.obligations(),
        )
    }
}
