#!/usr/bin/env python3
"""jinja.py - what Jinja2 makes of every built-in filter, test, function and method, in the environment that
transformers' apply_chat_template sets up: a line {name, template, data, target} for each case, or
{.., error} where it fails. Writes tests/data/jinja/builtin.jsonl; needs jinja2 and transformers."""
import json
import re
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

DATA = {
    "i": 7, "n": -3, "z": 0, "f": 2.5, "g": -0.125, "big": 12345678901234567890, "t": True, "no": False,
    "none": None, "s": "Hello <b>World</b> & 'you'", "u": "héÉ ß ǆ 日本 😀", "sp": "  a\tb \n c ", "e": "",
    "d": {"b": 1, "A": 2, "c": [3, {"x": None}]}, "l": [3, 1, 2, 1], "w": ["b", "A", "a", "B"], "mix": [1, "1", 1.0, True, None],
    "ds": [{"n": "x", "v": 2, "o": {"k": 1}}, {"n": "y", "v": 1}, {"n": "X", "v": 2, "o": {"k": 0}}],
    "text": "The quick brown fox jumps over the lazy dog, and then some more words follow\n\nsecond paragraph-here",
    "url": "see https://example.com/a?b=c and www.test.org or me@x.org (http://y.net/z).",
}
# Expressions, each put between {{ and }}.
FILTERS = """
f|abs; n|abs; t|abs; s|abs; e|abs; big|abs; none|abs
d|attr('b'); d|attr('items') is callable; 'x'|attr('nope') is undefined; d|attr(1)
l|batch(2)|list; l|batch(3,'-')|list; l|batch(0)|list; range(7)|batch(3)|map('join','+')|join('/'); l|batch(linecount=2,fill_with=0)|list
s|capitalize; u|capitalize; 7|capitalize; 'ǆABC'|capitalize
'ab'|center(7); 'ab'|center(6)~'|'; u|center(20)~'|'; ''|center; 12|center(6)~'|'
l|count; d|count; u|length; 5|length; none|length
undef|d('x'); none|d('x'); none|default('x',true); e|default('y',boolean=True); e|default('y'); undef|default; z|d(1,true)
d|dictsort; d|dictsort(true); d|dictsort(by='value'); {'a':2,'b':1}|dictsort(by='value',reverse=true); {'a':1}|dictsort(by='x')
s|e; s|escape; s|e|e; s|forceescape; s|e|forceescape; 5|e; none|e; l|e; ('<'|e) + '>'; '<' + ('>'|e); ('<'|safe) + '>'; ('<'|safe) ~ '>'; ('<'|e) * 2
('<i>'|safe).upper() + '<'; ('a<'|safe)|upper ~ ('<'|e); ('%s'|safe) % '<'; ('{}'|safe).format('<'); ['<']|join('&'|safe); ['<','>'|e]|join(','); [('x'|safe)]; ('a'|safe)|tojson; s|safe|string|e
('<'|safe) is escaped; '<' is escaped; 5 is escaped; ('a'|e) is string; ('ab'|e)[0] is escaped; ('a b'|e).split(' ')[0] is escaped; ('a'|e)|list; ('<'|e)|length; ('<a>'|safe).replace('a','<'); (' a '|safe).strip() is escaped; ('a'|safe)|trim is escaped; ('x'|safe)|replace('x','<') is escaped; ('a<'|safe)|indent; ('a'|safe) == 'a'; {'a'|safe: 1}['a']
0|filesizeformat; 1|filesizeformat; 999|filesizeformat; 1000|filesizeformat; 1234567|filesizeformat; 1e15|filesizeformat; 1024|filesizeformat(true); 5000000000|filesizeformat(binary=true); '300'|filesizeformat; 'x'|filesizeformat; 10**27|filesizeformat; (-5000)|filesizeformat; 1e30|filesizeformat; t|filesizeformat
l|first; e|first; []|first; d|first; u|first; ''|first is undefined; range(3)|first
'2.5'|float; 'x'|float; 'x'|float(1.5); none|float; t|float; '1e400'|float; '1_000'|float; ' 3 '|float; big|float; 'nan'|float; l|float(default=9); undef|float
'%s-%d'|format('a',3); '%(a)s'|format(a=1); '%s %s'|format(1); '%05.2f|%x|%c|%r|%%'|format(3.14159,255,'z','q'); '%s'|format(none); '%d'|format('x'); '%i %u %o %e %g'|format(3,4,8,12345.678,0.0001); '%+d % d %-5d|'|format(3,4,5); '%s'|format(big); '%d'|format(big); '%d'|format(2.9); '%*d'|format(5,42)
ds|groupby('v'); ds|groupby('v')|map(attribute='grouper')|list; ds|groupby('n')|length; ds|groupby('n',case_sensitive=true)|length; ds|groupby('o.k',default=5)|map('first')|list; ds|groupby('zz'); (ds|groupby('v'))[0].list|length; (ds|groupby('v'))[0][0]
text|indent; text|indent(2,true); text|indent(2,true,true); text|indent('>> ',first=true); 'a\\nb'|indent(width=1); ''|indent(2,true); 'a\\n\\nb\\n'|indent(3); 'a\\n\\nb\\n'|indent(3,blank=true); 'a\\r\\nb'|indent(2); 5|indent
'12'|int; 'x'|int; 'x'|int(5); '0x1f'|int(0,16); '0b11'|int(base=2); '077'|int(base=8); '12.9'|int; 2.9|int; none|int; none|int(4); t|int; ' 42 '|int; '1_0'|int; big|int; '99999999999999999999999'|int; 'ff'|int(base=16); 'zz'|int(base=36); '12'|int(base=40); '1e3'|int; 1e20|int; l|int; undef|int
d|items|list; none|items|list; undef|items|list; l|items|list; d|items|first
l|join; l|join(', '); ds|join(',','n'); ds|join('-',attribute='v'); u|join('.'); none|join; []|join(','); d|join('+'); mix|join('|'); l|join(1)
l|last; e|last; []|last; u|last; d|last; (l|map('abs'))|last; range(3)|last
u|list; d|list; range(3)|list; none|list; 5|list; (l,)|list
s|lower; 'ÀÉ'|lower; 5|lower; 'İ'|lower; 'ΑΣ'|lower; none|lower
ds|map(attribute='n')|list; ds|map(attribute='o.k')|list; ds|map(attribute='o.k',default='-')|list; w|map('upper')|join; l|map('string')|list; l|map('nope')|list; l|map()|list; w|map('replace','a','z')|list; l|map(attribute=0)|list; [[1,2],[3,4]]|map(attribute=1)|list; [[1,2]]|map('first')|list; ds|map(attribute='zz')|list; l|map('default','x')|list; ds|map(attribute='n',foo=1)|list
l|max; w|max; w|max(case_sensitive=true); ds|max(attribute='v'); []|max; l|min; w|min; w|min(true); ds|min(attribute='v'); mix|max; 'hello'|max; []|min is undefined; [1.5,1]|min
d|pprint; l|pprint; s|pprint; 'it\\'s'|pprint; 5|pprint; none|pprint; ds|pprint; text|pprint; range(40)|list|pprint; (1,)|pprint; []|pprint; {'k':'x'*100,'j':['y'*50,'z'*50]}|pprint
[]|random; [5]|random; 'a'|random
l|reject('odd')|list; l|reject|list; [0,1,'']|reject|list; l|reject('gt',1)|list; ds|rejectattr('o')|map(attribute='n')|list; ds|rejectattr('v','eq',2)|map(attribute='n')|list; l|reject('nope')|list; ds|rejectattr('o.k')|list|length; ds|rejectattr|list
s|replace('l','L'); s|replace('l','L',1); s|replace('','-',3); 5|replace(5,6); s|replace('<',''); u|replace('日','x'); s|replace('l'); s|replace(old='l',new='_',count=2); 'aaa'|replace('a','b',0); 'aaa'|replace('a','b',-1)
l|reverse|list; u|reverse; d|reverse|list; 5|reverse; range(3)|reverse|list; none|reverse; e|reverse
2.5|round; 3.5|round; 2.567|round(2); 2.567|round(1,'floor'); 2.511|round(1,'ceil'); 7|round; 1234|round(-2); 2.5|round(0,'x'); 'a'|round; (-2.5)|round; 1e20|round; 0.1|round(20); 42.55|round(1,'floor')|int; big|round; t|round; 5|round(method='floor'); 2.675|round(2); 1e300|round(10)
s|safe; 5|safe; l|safe; none|safe
l|select('odd')|list; l|select|list; [0,1,'',none,'a']|select|list; ds|selectattr('o')|map(attribute='n')|list; ds|selectattr('v','gt',1)|map(attribute='n')|join; ds|selectattr('n','in',['x','X'])|list|length; l|select('>',1)|list; l|select('in',[1,2])|list; w|select('upper')|list; ds|selectattr('o.k','defined')|list|length; mix|select('string')|list; mix|select('sameas',true)|list; ds|selectattr('v','equalto',2)|first; ds|selectattr('zz')|list; mix|select('number')|list
l|slice(2)|list; l|slice(3,'-')|list; range(10)|slice(3)|list; []|slice(2)|list; l|slice(0)|list; l|slice(slices=3,fill_with=0)|list; 'abcde'|slice(2)|list
l|sort; w|sort; w|sort(case_sensitive=true); l|sort(true); ds|sort(attribute='v')|map(attribute='n')|join; ds|sort(attribute='v,n')|map(attribute='n')|join; mix|sort; d|sort; 'hello'|sort; ds|sort(attribute='v',reverse=true)|map(attribute='n')|join; [none,1]|sort; [[2,1],[1,2]]|sort; [1,true,0.5]|sort; ds|sort(attribute='o.k')|list; []|sort; ds|sort(attribute='n',case_sensitive=true)|map(attribute='n')|join
5|string; none|string; l|string; s|string; d|string; t|string; 1e16|string; 1e-5|string; 0.1|string; big|string; undef|string; (l|map('abs'))|string is string; range(3)|string; (1,2)|string; {}|string; 100000.0|string; 123456789012345680.0|string; 1.0|string
'<b>x</b>  y\\n z &amp; &lt;i&gt;'|striptags; '<!-- c --> a <x'|striptags; s|striptags; 5|striptags; 'a<b>c'|striptags; '&#65;&eacute;&nope;&#x41;'|striptags; '&copy 1'|striptags; '<a<b>>c'|striptags
l|sum; []|sum; l|sum(start=10); ds|sum(attribute='v'); ds|sum('v',5); [0.1,0.2,0.3]|sum; w|sum; [[1],[2]]|sum(start=[]); mix|sum; [0.1]*10|sum; ([0.1]*10)|sum; [big,1]|sum; [true,true]|sum
'hello wORLD'|title; "it's a-b (cd) [ef] {gh} <ij>"|title; 'ab_cd e.f 3g'|title; u|title; 5|title; 'ǆx'|title; 'a\\tb\\nc'|title
d|tojson; s|tojson; u|tojson; u|tojson(ensure_ascii=true); d|tojson(indent=2); d|tojson(2); d|tojson(sort_keys=true); d|tojson(separators=(',',':')); [1.0,1e100,1e16,1e-7,none,true]|tojson; undef|tojson; range(3)|tojson; {1:2,none:3,true:4,1.5:5}|tojson; '\\x00\\x1f\\x7f"\\\\/'|tojson; []|tojson(indent=2); {}|tojson(indent=2); [[]]|tojson(indent='>'); (1,2)|tojson; big|tojson; (l|map('abs'))|tojson; d.items()|tojson; d|tojson(indent=0); d|tojson(false,indent=1,separators=(';','=')); {(1,2):3}|tojson; ('nan'|float)|tojson; ('inf'|float)|tojson; namespace(a=1)|tojson; (d|tojson)|e; 1e22|tojson; 5e-324|tojson; '\\u2028'|tojson
sp|trim~'|'; sp|trim(' ')~'|'; 'xxaxx'|trim('x'); 'xyaxy'|trim('yx'); 5|trim; none|trim; '\\u3000a\\u3000'|trim; '\\x1ca\\x85'|trim~'|'; sp|trim(none)~'|'
text|truncate(20); text|truncate(20,true); text|truncate(20,true,'..'); text|truncate(20,false,'..',0); text|truncate(300); text|truncate(1); text|truncate(3,true); 'foo bar baz qux'|truncate(9); 'foo bar baz qux'|truncate(9,true); 'foo bar baz qux'|truncate(11); 'foo bar baz qux'|truncate(11,false,'...',0); u|truncate(5,true,'',0); text|truncate(length=10,end='!',leeway=0); 5|truncate
l|unique|list; w|unique|list; w|unique(true)|list; ds|unique(attribute='v')|map(attribute='n')|list; mix|unique|list; d|unique|list; 'hello'|unique|join; [[1],[1]]|unique|list
s|upper; 'straße'|upper; 5|upper; 'ŉ'|upper; 'ﬁ'|upper
u|urlencode; s|urlencode; {'a b':1,'c':'&'}|urlencode; [('x',1),('y','é')]|urlencode; 5|urlencode; 'a/b~c-d_e.f'|urlencode; [['k','v']]|urlencode; l|urlencode; none|urlencode; {}|urlencode
url|urlize; url|urlize(10); url|urlize(nofollow=true); url|urlize(target='_blank'); url|urlize(rel='x'); 'plain < text'|urlize; 'mailto:a@b.com'|urlize; '(www.a.com)'|urlize; 'ftp://x.y'|urlize(extra_schemes=['ftp://']); 'a@b.c, http://x.org/?q=1&r=2.'|urlize; '<http://x.org>'|urlize; 'x.com y.net z.io'|urlize; ''|urlize
text|wordcount; u|wordcount; e|wordcount; "don't a_b c-d"|wordcount; 5|wordcount; sp|wordcount
text|wordwrap(20); text|wordwrap(10,false); text|wordwrap(10,true,'|'); 'abcdefghijklmnop qrs'|wordwrap(5); 'abcdefghijklmnop qrs'|wordwrap(5,false); text|wordwrap(20,true,none,false); 'a b\\n\\n  c d e'|wordwrap(3); ''|wordwrap(5); 'aaa bbb-ccc-ddd eee'|wordwrap(7); 'aaa  bbb   ccc'|wordwrap(4); 'a\\tb c'|wordwrap(4); text|wordwrap(0); u|wordwrap(4); 5|wordwrap(2); 'x-y--z---w abc-def'|wordwrap(4); ' lead and trail '|wordwrap(6); 'aa\\u2028bb\\x0bcc'|wordwrap(4)
{'class':'a<','id':none,'x':undef,'n':5}|xmlattr; {'a':1}|xmlattr(false); {}|xmlattr; {'a b':1}|xmlattr; {'a':'"'}|xmlattr; l|xmlattr
s|nofilter; s|upper|lower|title; s | upper ( ) ; s|upper()|length; -1|abs; (-1)|abs; 1 + '2'|int; 'a' ~ 1|string
"""
TESTS = """
t is boolean; 1 is boolean; none is boolean; d.items is callable; s is callable; range is callable; cycler is callable; undef is callable
i is defined; undef is defined; d.zz is defined; d.b is defined; d.b.c is defined; undef.x is defined
i is divisibleby 7; i is divisibleby(2); 7.5 is divisibleby 2.5; s is divisibleby 2; big is divisibleby 10; i is divisibleby 0
i is eq 7; i is equalto 7.0; i is == 7; i == true; 1 is eq true; big is eq 12345678901234567890; s is eq 5; i is ne 7; i is != 8
i is even; i is odd; n is odd; f is even; big is even; s is odd; t is odd; 2.0 is even; none is even
no is false; z is false; t is true; 1 is true; none is false; 'upper' is filter; 'nofilter' is filter; 5 is filter; 'defined' is test; 'x' is test; ['a'] is filter
f is float; i is float; t is float; big is float; i is ge 7; i is >= 8; i is gt 6; i is greaterthan 7; i is > 7; i is le 7; i is <= 6; i is lt 8; i is lessthan 7; i is < 7; s is gt 5; none is lt 1; 'a' is lt 'b'; [1] is lt [2]; t is gt 0
1 is in l; 'ell' is in s; 9 is in(l); 'b' is in d; 1 is in 5; 1 is in s; none is in mix; 1.0 is in l; undef is in l
i is integer; t is integer; f is integer; big is integer; '1' is integer; 1.0 is integer
l is iterable; s is iterable; i is iterable; d is iterable; none is iterable; undef is iterable; range(2) is iterable; (l|map('abs')) is iterable
'abc' is lower; 'aBc' is lower; '123' is lower; u is lower; 5 is lower; 'ABC' is upper; 'AB1' is upper; '' is upper; 'ß' is lower; 'ª' is lower; 'ǅ' is upper
d is mapping; l is mapping; s is mapping; namespace() is mapping; none is none; z is none; undef is none; i is number; f is number; t is number; s is number; big is number; none is number
i is sameas 7; none is sameas none; l is sameas l; t is sameas true; t is sameas 1; 1 is sameas 1.0; [1] is sameas [1]; s is sameas s
l is sequence; s is sequence; d is sequence; i is sequence; none is sequence; undef is sequence; (l|map('abs')) is sequence; range(3) is sequence; d.items() is sequence; d.keys() is sequence
s is string; i is string; undef is string; undef is undefined; none is undefined; i is not defined; not i is defined; i is not even; i is nope; (d|attr('x')) is undefined; i is defined and s is string; i is divisibleby(7) and t
"""
METHODS = """
u.capitalize(); 'straße İ ŉ'.casefold(); 'ﬁ ΑΣ'.casefold(); 'a'.center(5); 'ab'.center(5,'*'); 'ab'.center(4,'*'); 'a'.center(5,'xy')
s.count('l'); s.count('l',3); s.count('l',3,5); s.count(''); 'aaa'.count('aa'); s.encode(); 'é'.encode('utf-8'); s.endswith('you\\''); s.endswith(('a',"'")); s.endswith('l',0,4); s.startswith(('<','H')); s.startswith('ell',1); s.startswith(''); s.startswith(5)
'a\\tb'.expandtabs(); 'a\\tb\\n\\tc'.expandtabs(4); '\\t'.expandtabs(0)~'|'; 'ab\\tc'.expandtabs(tabsize=3)
s.find('o'); s.find('o',6); s.find('zz'); s.find('o',0,3); s.rfind('o'); s.index('o'); s.index('zz'); s.rindex('o'); s.rindex('zz'); u.find('日'); u.find('',3); s.find('o',-20,-1); u.rfind('')
'{} {}'.format(1,'a'); '{0}{1}{0}'.format('a','b'); '{x}'.format(x=5); '{:>5}|{:<5}|{:^5}'.format(1,2,3); '{:.2f}'.format(3.14159); '{:,}'.format(1234567); '{:05d}'.format(42); '{!r}'.format('a'); '{:x} {:b} {:o} {:X}'.format(255,5,8,255); '{{}}'.format(1); '{:%}'.format(0.5); '{:e}'.format(1234.5); '{a[b]}'.format(a={'b':1}); '{0.b}'.format(d); '{}'.format(); '{:d}'.format('a'); '{:+d} {: d}'.format(1,2); '{:*^9}'.format('mid'); '{:_}'.format(1000000); '{:g}'.format(1e10); '{:10}|'.format('a'); '{:10}|'.format(5); '{:.3}'.format('abcdef'); '{:c}'.format(65); '{!s:>4}'.format(1); '{:{w}}|'.format(3,w=5); '{:#x}'.format(255); '{:n}'.format(1234); '{:}'.format(none); '{:5}'.format(none); '{:s}'.format('a'); '{:g} {:G}'.format(0.00001,1e-10); '{:.0f}'.format(2.5); '{:08.3f}'.format(-3.14159); '{:,.2f}'.format(1234567.891); '{:=+6d}'.format(5); '{}'.format(big); '{:,}'.format(big); '{:x}'.format(big); '{:.1%}'.format(0.256)
'{a}'.format_map({'a':1}); '{b}'.format_map({'a':1})
'a1'.isalnum(); ''.isalnum(); 'é'.isalpha(); 'a1'.isalpha(); 'abc'.isascii(); 'é'.isascii(); ''.isascii(); '12'.isdecimal(); '²'.isdecimal(); '²'.isdigit(); '½'.isdigit(); '½'.isnumeric(); '一'.isnumeric(); '一'.isdigit(); '٣'.isdecimal(); '٣'.isdigit(); 'a_1'.isidentifier(); '1a'.isidentifier(); ''.isidentifier(); 'é'.isidentifier(); 'abc'.islower(); 'aB'.islower(); 'ab1'.islower(); '1'.islower(); 'a\\n'.isprintable(); 'é '.isprintable(); ''.isprintable(); '\\u00a0'.isprintable(); ' \\t'.isspace(); ''.isspace(); '\\u3000'.isspace(); 'Ab Cd'.istitle(); 'Ab cd'.istitle(); 'A'.istitle(); ''.istitle(); "It'S".istitle(); 'AB'.isupper(); 'A1'.isupper(); '1'.isupper()
','.join(w); ''.join(['a','b']); ','.join(l); ','.join(d); '-'.join(u); ','.join([])
'a'.ljust(4)~'|'; 'a'.ljust(4,'-'); 'a'.rjust(4); 'a'.rjust(4,'日'); 'ABÉ'.lower(); sp.lstrip()~'|'; 'xxa'.lstrip('x'); sp.rstrip()~'|'; 'axx'.rstrip('x'); sp.strip()~'|'; '<<a>>'.strip('<>'); sp.strip(none)~'|'; 'abcba'.strip('ab')
'a-b-c'.partition('-'); 'abc'.partition('-'); 'a-b-c'.rpartition('-'); 'abc'.rpartition('-'); 'a'.partition(''); s.removeprefix('Hello '); s.removesuffix("'you'"); s.removeprefix('x'); 'aaa'.removeprefix('a')
s.replace('l','L'); s.replace('l','L',1); ''.replace('','x'); 'ab'.replace('','-'); 'ab'.replace('','-',2); s.replace('zz','y'); s.replace('l')
'a b  c'.split(); 'a,b,,c'.split(','); 'a,b,c'.split(',',1); ' a b '.split(' '); 'a b c'.split(maxsplit=1); 'a b c'.split(none,1); ''.split(); ''.split(','); 'abc'.split(''); 'a b c'.rsplit(' ',1); 'a b c'.rsplit(); 'a,b,c'.rsplit(',',1); ' a  b  c '.rsplit(none,1); ' a  b  c '.split(none,1); 'a<>b<>c'.split('<>'); 'a b'.split(sep=' ',maxsplit=0); 'a'.split(5)
'a\\nb\\r\\nc\\rd'.splitlines(); 'a\\nb\\n'.splitlines(true); 'a\\x0bb\\x1cc\\u2028d\\x85e'.splitlines(); ''.splitlines(); 'a\\n\\nb'.splitlines(keepends=true)
'aBc'.swapcase(); 'ßǆ'.swapcase(); "it's a1b".title(); u.title(); 'ǆabc'.title(); 'abc'.translate({97:'x',98:none}); 'abc'.translate({}); 'hello'.maketrans('l','L'); 'straße'.upper(); '42'.zfill(5); '-42'.zfill(5); '+1'.zfill(4); 'abc'.zfill(2); ''.zfill(3)
d.get('b'); d.get('zz'); d.get('zz',5); d.items(); d.keys(); d.values(); d.items()|list; d.keys()|list; d.copy(); d.pop('b'); d.update({'x':1}); d.clear(); d.setdefault('q',1); d.popitem(); dict(a=1,b=2); dict([('a',1)]); dict({'x':1},y=2); dict.fromkeys(['a','b'],0); dict.fromkeys('ab'); d.fromkeys(['a']); d.has_key('a'); d.get(); d.get([1]); (d.keys())[0]; d.values()|sum; d.b; d['b']; d.items; d['items']; d.__class__; d.keys()|length; d.items()[0]; 'b' in d.keys(); 1 in d.values(); ('b',1) in d.items()
l.index(1); l.index(9); l.index(1,2); l.index(1,2,3); l.count(1); l.copy(); l.append(1); l.pop(); l.sort(); l.reverse(); l.insert(0,1); l.extend([1]); l.remove(1); l.clear(); (1,2,1).count(1); (1,2).index(2); (1,2).append(1); l.count('1'); range(5).count(3); range(2,9,3).index(5); range(5).start; range(5).stop; range(1,9,2).step; range(5)[2]; range(5)[1:3]; range(5); range(0,5,2); range(5,0,-2)|list; range(0); range(1,2,0); range('a'); range(1.5); range(5)|length; 3 in range(5)
i.bit_length(); (7).bit_count(); f.is_integer(); 3.0.is_integer(); i.real; i.imag; i.numerator; i.denominator; f.hex(); (255).to_bytes(2,'big'); f.as_integer_ratio(); i.conjugate(); i.as_integer_ratio(); t.real; i.is_integer()
none.x; none.x.y; undef.x; s.x; s['x']; l.x; l['x']; l[9]; l[9].x; l[-1]; l[1:]; l[::-1]; s[::2]; u[1:4]; s[-3:]; l[:-1]; l[5:]; l[::0]; l['1']; s[100]; d[1]; i.x; i[0]; l[1.0]; l[true]; (1,2,3)[1:]; s[none:3]; s['a':]; none[0]; l[0:2][1]
"""
FUNCS = """
range(3)|list; range(2,5)|list; range(100001)|length; range(-1)|list; dict(a=1).a; lipsum(0)|length; lipsum(n=2,html=false,min=3,max=5).split('\\n\\n')|length
namespace(a=1).a; namespace({'a':2}).a; namespace(a=1); namespace(_a=1); namespace().b is undefined; namespace(a=1)['a']; namespace(); namespace(items=3).items
strftime_now('%%'); strftime_now('lit'); raise_exception('x'); raise_exception(); raise_exception(5); strftime_now('%Y')|length
cycler('a','b').next(); cycler(); cycler('a').current; joiner()(); joiner('|')() ~ 'x'; range; dict; namespace; lipsum is callable; super is defined; loop is defined; varargs is defined; caller is defined; true; True; none; None; false; False; null is defined; nil is defined; _ is defined; gettext is defined; context is defined
"""
ARITH = """
1+2; 1-2; 3*4; 7/2; 7//2; -7//2; 7%3; -7%3; 7%-3; 2**10; 2**-1; 2**0.5; (-8)**(1/3); 1/0; 1//0; 1%0; 0**-1; 7.5//2; -7.5%2; 1e308*10; 0.1+0.2; 1+1.0; true+1; true*3; 's'*3; 3*'s'; 's'*-1; [1]*2; [1]+[2]; (1,)+(2,); [1]+(2,); 's'+1; 1+'s'; none+1; 's'%5; '%d'%5; '%s,%s'%(1,2); '%(a)s'%{'a':1}; -s; +i; -true; +f; not i; -none; 1~2; none~1; [1]~'a'; 1<2<3; 1<2>3; 1==1.0; '1'==1; none==none; none<1; 's'<1; [1,2]<[1,3]; 'a' in 'abc'; 'a' not in 'abc'; 1 in [1]; 1 in 5; {}=={}; {'a':1}=={'a':1.0}; [1]==(1,); 1 and 0; 0 or 's'; none and x; 'a' if i; 'a' if z; 'a' if z else 'b'; (1 if t else 2) + 1; i if undef else f
9223372036854775807+1; -9223372036854775808-1; 9223372036854775807*2; 9223372036854775807*9223372036854775807; 2**63; 2**64; 2**100; 3**50; -2**63; (-2)**63; 9223372036854775808; 18446744073709551616; -9223372036854775808; 123456789012345678901234567890; 0xffffffffffffffffff; 1_000_000; 0b101; 0o17; 1_0.5; 1e5; 1.5e-3; 1E5; big+1; big-1; big*2; big//3; big%7; big/2; big**2; -big; big==big; big<1e30; big>i; big==12345678901234567890; big!=i; big|string|length; -big//7; -big%7; big%-7; i-big; big-big; (big-big)|tojson; big*0; big*1.5; big+0.5; 1/big; i//big; -i//big; i%big; big//big; big**0; (2**64)//(2**60); 2**64-2**64+5; 10**18*10; 10**20//10**18; 10**20/10**18; 99999999999*99999999999; [big][0]; {'a':big}; [big]|sum; [big,i]|max; [big,i]|sort; big in [big]; {big:1}[big]; big is odd; big is divisibleby 3; (big|float)|int; big|int==big; '%d'%(big+1); '%x'%big; '{}'.format(big*2); (big*big)|tojson; (2**200)|string; 2**200>2**199; 2**200==2**200; -(2**200); (2**200)//3; (2**200)%1000007; 7**200 // 7**199; not big; big and 1; big|abs; (-big)|abs; big|round; l[big]; 's'*big; range(big); big|filesizeformat; '12345678901234567890123'|int + 1; 1e25|int; (1e25|int) + 1; 2.0**70|int; (2**70)|float; 2**1000|float; 10**400|float; (10**400)*1.0; 2**100000|string|length; 10**5000; big.bit_length(); hash; (-9223372036854775807-1)//-1; (-9223372036854775807-1)%-1; (-9223372036854775807-1)*-1; -(-9223372036854775807-1); (-9223372036854775807-1)|abs; 9007199254740993==9007199254740992.0; 9007199254740993<9007199254740992.5; 3037000500*3037000500; 4611686018427387904*2; i*big*n; (big+i)-big; big-12345678901234567889; 10**19%10**18; 1000000007**3; (10**30)//(10**12+7); -(10**30)//(10**12+7); (10**30)%-(10**12+7); 5**27; 7**22; 7**23; 15**16; (-3)**39; (-3)**40; 0**0; 1**big; 0**big; 2**(i*n*n)
"""
STATEMENTS = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a','b') }}{{ loop.changed(x) }};{% endfor %}",
    "{% set c = cycler('a','b','c') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}{{ c.pos }}{{ c.items }}",
    "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}{{ j.sep }}",
    "{% set j = joiner() %}{% for x in w %}{{ j() }}{{ x }}{% endfor %}",
    "{% set c = cycler(*w) %}{% for x in range(6) %}{{ c.next() }}{% endfor %}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter indent(2)|trim %} a\nb{% endfilter %}",
    "{% set x %}<b>{{ i }}{% endset %}{{ x }}{{ x is escaped }}", "{% set x | upper %}ab{% endset %}{{ x }}",
    "{% with a=1, b=2 %}{{ a+b }}{% endwith %}{{ a }}", "{% with %}{% set q=1 %}{{ q }}{% endwith %}{{ q }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1,3,4,5) }}{{ m(1,z=2) }}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1,2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m() }}|{{ m(q=1) }}", "{% macro m(a) %}{{ a is undefined }}{% endmacro %}{{ m() }}{{ m(a=1) }}{{ m(1,a=1) }}",
    "{% macro m() %}[{{ caller(1) }}]{% endmacro %}{% call(x) m() %}{{ x }}!{% endcall %}", "{% macro m() %}{{ caller is defined }}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}{{ m() }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for a, b in [(1,2),(3,)] %}{{ a }}{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{% else %}none{% endfor %}", "{% for x in [] %}{% else %}none{% endfor %}",
    "{% for x in [1,[2,[3]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}:{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}",
    "{% set ns = namespace(x=0) %}{% for a in l %}{% set ns.x = ns.x + a %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{% set d.b = 2 %}", "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{% set a, b = l %}", "{% set (a, b) = 'xy' %}{{ a }}{{ b }}", "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}", "{% set x = 1 %}{% for q in l %}{% set x = 2 %}{% endfor %}{{ x }}",
    "{# c #}a{#- c -#} b", "a\n{#- x #}\nb", "{% raw %}{{ x }}{% endraw %}", "  {%- if t -%}  a  {%- endif -%}  b", "  {%+ if t %}a{% endif %}", "{% if t +%}\na{% endif %}", "{{ '{{' }}", "{{- ' a ' -}}  b", "a\n\n", "{{ 'a' }}\n", "{% if t %}\n  x\n{% endif %}\n",
    "{% if i == 7 %}a{% elif t %}b{% else %}c{% endif %}", "{% if undef %}a{% endif %}{% if not undef.x %}b{% endif %}", "{% for c in 'abc' %}{{ c }}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in undef %}a{% else %}b{% endfor %}", "{% for x in none %}{% endfor %}",
    "{% do l %}", "{% include 'a' %}", "{% import 'a' as b %}", "{% extends 'a' %}", "{% block a %}x{% endblock %}", "{% autoescape true %}{{ s }}{% endautoescape %}", "{% autoescape false %}{{ s }}{% endautoescape %}", "{% trans %}x{% endtrans %}", "{% debug %}",
    "{% generation %}a{{ i }}{% endgeneration %}b", "{{ [1,2,]|list }}{{ (1,) }}{{ () }}{{ {} }}{{ {'a':1,} }}", "{{ 'a' 'b' }}", "{{ \"a\\tb\\n\\x41\\u00e9\\U0001F600\\'\\\"\\\\\\101\\q\" }}", "{{ 'a\nb' }}", "{{ 1.real }}", "{{ 1 .real }}", "{{ l.0 }}", "{{ d.c.1.x }}", "{{ 1 if t else }}", "{{ }}", "{{ 1,2 }}", "{{ *l }}", "{{ dict(**d).b }}", "{{ '%s'|format(*['a']) }}", "{{ m is defined }}{% macro m() %}{% endmacro %}{{ m is defined }}",
    "{% set f = range %}{{ f(2)|list }}", "{% set x = d.get %}{{ x('b') }}", "{{ (l|map('abs')) }}"[:0] + "{{ (l|map('abs'))|list }}", "{% set g = l|map('abs') %}{{ g|list }}{{ g|list }}", "{% set g = l|select('odd') %}{% for x in g %}{{ x }}{{ loop.last }}{% endfor %}{{ g|length }}", "{{ loop.index }}", "{% for x in l %}{% for y in w %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for x in d %}{{ x }}{% endfor %}", "{% for x in l|reverse %}{{ x }}{{ loop.length }}{% endfor %}", "{% for x in l recursive %}{{ x }}{% endfor %}",
    "{% set __a = 1 %}{{ __a }}", "{{ ''.__class__ }}", "{{ d|attr('__class__') }}", "{{ l[0:9223372036854775807] }}", "{{ s[99999999999999999999:] }}", "{% if 1 in l and 2 in l or x.y.z %}y{% endif %}", "{{ not undef }}", "{{ undef.a.b }}", "{{ undef() }}", "{{ undef[0] }}", "{{ undef + 1 }}", "{{ undef ~ 'a' }}", "{{ undef == undef2 }}", "{{ undef < 1 }}", "{{ undef|list }}", "{{ undef|length }}", "{{ undef in l }}", "{{ -undef }}", "{{ undef|upper }}", "{{ undef|e }}", "{{ s if undef is defined else 'dflt' }}",
]


# What we refuse by name, though Jinja2 renders it: HTML, chance, bytes, complex numbers, addresses.
REFUSED = re.compile(r"\|(pprint|random|striptags|urlize|wordwrap|xmlattr)\b|lipsum\(|\.(encode|isidentifier|translate|"
                     r"maketrans|bit_length|bit_count|is_integer|hex|to_bytes|as_integer_ratio|conjugate)\(|autoescape true|"
                     r"\{ (d\.items|d\['items'\]|range|dict|namespace|\(-8\)\*\*\(1/3\)) \}")


def target(template):
    if REFUSED.search(template):
        return {"error": "refused"}
    try:
        return {"target": _compile_jinja_template(template).render(**DATA)}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"[:80]}


def main(out):
    n = 0
    with open(out, "w", encoding="utf-8", errors="surrogatepass") as f:
        print(json.dumps({"data": DATA}, ensure_ascii=False), file=f)
        for part, text in ("filter", FILTERS), ("test", TESTS), ("method", METHODS), ("function", FUNCS), ("arith", ARITH):
            for line in text.strip().splitlines():
                for e in line.split("; "):
                    case = {"name": f"{part} {e}", "template": "{{ " + e + " }}", **target("{{ " + e + " }}")}
                    print(json.dumps(case, ensure_ascii=True), file=f)
                    n += 1
        for s in STATEMENTS:
            print(json.dumps({"name": s[:60], "template": s, **target(s)}), file=f)
            n += 1
    print(n, "cases", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/data/jinja/builtin.jsonl")
