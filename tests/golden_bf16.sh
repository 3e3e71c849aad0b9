# golden_bf16.sh - golden_bf16 DEVICE MODEL..: golden models in bf16 beside the reference's f32. Losses, also those of
# AdamW's steps, are to be within 2e-2, and log-probabilities, as vectors, and norms of gradients; logits within 3e-2
# (rounding the weights alone takes half of that). Models with experts are given f32's choices for that; their logits,
# and all but the losses of models that normalise the queries and keys of a gated DeltaNet, are within 4e-1: there a
# rounding becomes another choice, or another direction.

golden_bf16() {
	d_=$1 bad_=
	shift
	for m_; do
	    [ -f "$m_/expected.json" ] || continue
	    golden-models "$m_" --device $d_ --dtype bf16 >bf16 2>&1 || :	# gradients are farther off
	    awk -v model="$(basename "$m_")" '
		BEGIN {
		    delta = model ~ /^qwen3_5|^qwen3_next$/
		    chooses = model ~ /_moe$|^deepseek/
		}
		/does not run on this device/ { other = 1 }
		/^  error/ { exit 1 }
		match($0, /^  (LoRA )?(logits|logprobs|loss|gradient norm|AdamW losses) /) {
		    of = substr($0, 3, RLENGTH - 3)
		    v = substr($0, RLENGTH + 1) + 0
		    seen++
		    wild = delta || (chooses && of ~ /logits/)
		    if (!(v <= (of ~ /loss/ ? 2e-2 : wild ? 4e-1 : of ~ /logits/ ? 3e-2 : 2e-2))) {
			print model ": " of " " v
			bad = 1
		    }
		}
		END { exit bad || !(other || seen >= 4) }' bf16 || bad_=1
	done
	[ -z "$bad_" ]
}
