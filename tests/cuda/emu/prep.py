
import re,sys
K=sys.argv[1]; 
def body(s,i):  # matching paren from s[i]=='('
    d=0
    for j in range(i,len(s)):
        if s[j]=='(': d+=1
        if s[j]==')':
            d-=1
            if d==0: return j
def prep(f):
    s=open(K+'/kernels/'+f).read()
    s=s.replace('extern __shared__ __align__(16) unsigned char smem[];','unsigned char *smem = (unsigned char *)emu_mem();')
    s=s.replace('extern __shared__ float s[];','float *s = (float *)emu_mem();')
    s=re.sub(r'asm volatile\("cp.async.wait_group %0;" ::"n"\((.*?)\)\);',r'emu_cp_wait(\1);',s)
    for n in ['copy16','copy4','copy_done','mma']:
        s=re.sub(r'static __device__ __forceinline__ void '+n+r'\([^{]*\)\n\{.*?\n\}\n','',s,flags=re.S)
    s=re.sub(r'asm volatile\("ldmatrix.sync.aligned.m8n8.x(\d)(.trans)?.shared.b16.*?;"\s*:.*?\);',lambda m:'emu_ldsm(&f[0], a, %s, %s);'%(m[1],'true' if m[2] else 'false'),s,flags=re.S)
    s=re.sub(r'asm volatile\("griddepcontrol[^;]*;.*?\);','',s)
    while '<<<' in s:
        k=s.index('<<<'); e=s.index('>>>',k)
        # kernel name with template args before k
        j=k-1
        if s[j]=='>':
            d=0
            while True:
                if s[j]=='>': d+=1
                if s[j]=='<':
                    d-=1
                    if d==0: break
                j-=1
            j-=1
        while re.match(r'\w',s[j]): j-=1
        name=s[j+1:k]
        close=body(s,e+3)
        cfg=s[k+3:e]
        # split cfg by top-level commas
        parts=[];d=0;cur=''
        for ch in cfg:
            if ch in '([{': d+=1
            if ch in ')]}': d-=1
            if ch==',' and d==0: parts.append(cur);cur=''
            else: cur+=ch
        parts.append(cur)
        while len(parts)<3: parts.append('0')
        args=s[e+3:close+1]
        s=s[:j+1]+'emu_go{ dim3(%s), (unsigned)(%s), (size_t)(%s) } << [=]() { %s%s; }'%(parts[0],parts[1],parts[2],name,args)+s[close+1:]
    open('src/'+f,'w').write(s)
import os
os.makedirs('src',exist_ok=True)
for f in sys.argv[2:]: prep(f)
