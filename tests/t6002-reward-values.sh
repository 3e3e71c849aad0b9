#!/bin/sh
# t6002-reward-values.sh - every reward, with values by hand and with what no person would write
. "$(dirname "$0")/lib.sh"

# score REWARD TEXT KEY=JSON..: the reward of a completion TEXT (JSON) with these keys
score()
{
	reward_=$1 rec_="{\"completion\":{\"text\":$2,\"tokens\":[1,2,3]}"
	shift 2
	for kv_; do rec_="$rec_,\"${kv_%%=*}\":${kv_#*=}"; done
	printf "%s}\n" "$rec_" | tw-reward -q "$reward_" | sed 's/.*"reward":\([^,]*\),.*/\1/'
}

test_case 'gsm8k-accuracy' '
	test_equal "$(score gsm8k-accuracy "\"So \\\\boxed{1,234}\"" "answer=\"x\n#### 1234\"")" 1.0
	test_equal "$(score gsm8k-accuracy "\"\\\\boxed{5} and \\\\boxed{6}\"" "ground_truth=\"6\"")" 1.0
	test_equal "$(score gsm8k-accuracy "\"#### 6.00\"" "ground_truth=6")" 1.0
	test_equal "$(score gsm8k-accuracy "\"#### 6.\"" "ground_truth=6")" 1.0
	test_equal "$(score gsm8k-accuracy "\"#### 6 \\\\boxed{7}\"" "ground_truth=6")" 0.0
	test_equal "$(score gsm8k-accuracy "\"it is 6\"" "ground_truth=6")" 0.0
	test_equal "$(score gsm8k-accuracy "\"\\\\boxed{6.000001}\"" "ground_truth=6")" 1.0
	test_equal "$(score gsm8k-accuracy "\"\\\\boxed{6.0001}\"" "ground_truth=6")" 0.0
	test_equal "$(score gsm8k-accuracy "\"\\\\boxed{nan}\"" "ground_truth=6")" 0.0
	long=$(printf "%0600d" 0)
	test_equal "$(score gsm8k-accuracy "\"\\\\boxed{6} $long\"" "ground_truth=6")" 0.0
	test_equal "$(score gsm8k-accuracy "\"\\\\boxed{6}\"" "answer=\"words\"")" null
	test_equal "$(score gsm8k-accuracy "\"\\\\boxed{6}\"" "answer=\"words\"" "ground_truth=\"6\"")" 1.0
	test_equal "$(score gsm8k-accuracy "\"\\\\boxed{18}\"" "user_data=[[\"ground_truth\",\"18\"]]")" 1.0
'
test_case 'gsm8k-format' '
	test_equal "$(score gsm8k-format "\"\\\\boxed{x}\"")" 1.0
	test_equal "$(score gsm8k-format "\"\\\\boxed{}\"")" 0.0
	test_equal "$(score gsm8k-format "\"\\\\boxed{x\"")" 0.0
	test_equal "$(score gsm8k-format "\"#### 5\"")" 1.0
	test_equal "$(score gsm8k-format "\"#### five\"")" 0.0
'
test_case 'math: where the answer is, lists of references, tolerance' '
	test_equal "$(score math "\"so \\\\boxed{\\\\frac{1}{2}}\"" "solution=\"it is \\\\boxed{0.5}\"")" 1.0
	test_equal "$(score math "\"# Answer\n\n50%\"" "answer=\"1/2\"")" 1.0
	test_equal "$(score math "\"\\\\boxed{9} # Answer 3\"" "answer=3")" 1.0
	test_equal "$(score math "\"\\\\boxed{3}\"" "answer=[\"2\",\"3\"]")" 1.0
	test_equal "$(score math "\"\\\\boxed{0.333}\"" "answer=\"1/3\"")" 0.0
	test_equal "$(score math,tolerance=0.01 "\"\\\\boxed{0.333}\"" "answer=\"1/3\"")" 1.0
	test_equal "$(score math "\"12\"" "answer=\"#### 12\"")" 1.0
	test_equal "$(score math "\"\\\\boxed{12}\"")" null
'
test_case 'format' '
	test_equal "$(score format "\"<think>a</think><answer>b</answer>\"")" 1.0
	test_equal "$(score format "\"<answer>b</answer> <think>a</think>\"")" 1.0
	test_equal "$(score format "\"</think><think><answer>b</answer>\"")" 0.0
	test_equal "$(score format "\"<think>a</think>\"")" 0.0
'
test_case 'countdown' '
	cd_() { score "$1" "\"<answer>$2</answer>\"" "nums=[3,5,2]" "target=$3"; }
	test_equal "$(cd_ countdown "(3+5)*2" 16)" 1.0
	test_equal "$(cd_ countdown "(3+5)*2 = 16" 16)" 1.0
	test_equal "$(cd_ countdown "(3+5)*2 = 17" 16)" 0.0
	test_equal "$(cd_ countdown "3 \\u00d7 5 \\u2212 2" 13)" 1.0
	test_equal "$(cd_ countdown "3/5*2" 1.2)" 1.0
	test_equal "$(cd_ countdown "5*3" 15)" 0.0
	test_equal "$(cd_ countdown "5*3+2-2" 15)" 0.0
	test_equal "$(cd_ countdown "3**2*5" 45)" 0.0
	test_equal "$(cd_ countdown "3/(5-5)*2" 1)" 0.0
	test_equal "$(cd_ countdown,partial=0.1 "3+5+2" 16)" 0.1
	test_equal "$(cd_ countdown "__import__" 16)" 0.0
	test_equal "$(score countdown,partial=0.1 "\"no tags\"" "nums=[1]" "target=1")" 0.0
	test_equal "$(score countdown "\"<answer>1+2</answer>\"" "ground_truth=\"{\\\"target\\\": 3, \\\"nums\\\": [1, 2]}\"")" 1.0
	test_equal "$(score countdown "\"<answer>1+2</answer>\"" "nums=[1,2]" "response=3")" 1.0
	test_equal "$(score countdown "\"<answer>1+2</answer>\"" "target=3")" null
'
test_case 'exact' '
	test_equal "$(score exact "\" a b\n\"" "answer=\"a b\"")" 1.0
	test_equal "$(score exact "\"A\"" "answer=\"a\"")" 0.0
	test_equal "$(score exact,case=off "\"A\"" "answer=\"a\"")" 1.0
	test_equal "$(score exact "\"x \\\\boxed{7}\"" "answer=7")" 1.0
	test_equal "$(score exact,from=text "\"x \\\\boxed{7}\"" "answer=7")" 0.0
	test_equal "$(score exact "\"<answer> 7 </answer>\"" "answer=7")" 1.0
	test_equal "$(score exact,from=box "\"7\"" "answer=7")" 0.0
	test_equal "$(score exact,from=answer "\"7\"" "answer=7")" 0.0
	test_equal "$(score exact,from=line "\"think\n7\n\"" "answer=7")" 1.0
	test_equal "$(score exact "\"a\\u0000b\"" "answer=\"a\"")" 0.0
	test_equal "$(score exact "\"true\"" "answer=true")" 1.0
'
test_case 'f1' '
	# cat sat mat against cat sat: 2 * 2 / 5
	test_equal "$(score f1 "\"The cat, sat (mat)\"" "answer=\"a CAT sat\"")" 0.8
	test_equal "$(score f1 "\"running dogs\"" "answer=\"run dog\"")" 1.0
	test_equal "$(score f1 "\"running dogs\"" "answer=\"running cats\"")" 0.5
	test_equal "$(score f1 "\"\\\\boxed{Paris} or so\"" "answer=[\"London\",\"paris\"]")" 1.0
	test_equal "$(score f1 "\"the answer is Paris\"" "answer=\"Paris\"")" 1.0
	test_equal "$(score f1 "\"Paris 1999\"" "answer=\"Paris\"")" 1.0
	test_equal "$(score f1 "\"Paris London\"" "answer=\"Paris\"")" 0.6666666666666666
	test_equal "$(score "f1,pattern=/Answer: (.*)/" "\"Answer: x\nAnswer: red apple\"" "answer=\"red apple\"")" 1.0
	test_equal "$(score "f1,pattern=/Answer: (.*)/" "\"red apple\"" "answer=\"red apple\"")" 0.0
	test_equal "$(score f1 "\"\\u4f60\\u597d\"" "answer=\"\\u4f60\"")" 0.6666666666666666
	test_exit 2 tw-reward "f1,pattern=/(/" </dev/null 2>err
	test_text err "pattern=("
'
test_case 'multiple-choice' '
	for t in "\\\\boxed{B}" "The answer is (B)." "Answer: B" "**Answer: B**" "(A) no. So (B)" "B" "b" "B) two" "<answer>B. two</answer>" "\\\\boxed{\\\\text{B}}" "The answer is **B**"; do
		test_equal "$t $(score multiple-choice "\"$t\"" "answer=\"B\"")" "$t 1.0"
	done
	for t in "The answer is a dog" "" "no idea" "\\\\boxed{C}" "A or B? I say C" "answer is Banana"; do
		test_equal "$t $(score multiple-choice "\"$t\"" "answer=\"B\"")" "$t 0.0"
	done
	test_equal "$(score multiple-choice "\"B\"" "answer=1")" 1.0
	test_equal "$(score multiple-choice "\"B\"" "answer=\"two\"" "choices=[\"one\",\"two\"]")" 1.0
	test_equal "$(score multiple-choice "\"B\"" "answer=\"neither\"")" null
'
test_case 'length' '
	test_equal "$(score length,max=4 "\"abcd\"")" 1.0
	test_equal "$(score length,max=2,span=4 "\"\\u00e9bcd\"")" 0.5
	test_equal "$(score length,max=2,span=0 "\"abc\"")" 0.0
	test_equal "$(score length,min=8 "\"abcd\"")" 0.5
	test_equal "$(score length,unit=words,max=1,span=2 "\" a  b \"")" 0.5
	test_equal "$(score length,unit=tokens,max=1,span=4 "\"a\"")" 0.5
	test_equal "$(score length,need-answer=on "\"a\"")" 0.0
	test_equal "$(score length,need-answer=on "\"#### 1\"")" 1.0
	test_equal "$(echo "{\"text\":\"a\"}" | tw-reward -q length,unit=tokens | grep -c "\"reward\":null")" 1
	test_exit 2 tw-reward length,min=9,max=3 </dev/null 2>err
'
test_case 'repetition and cot' '
	test_equal "$(score repetition,n=2 "\"a b a b a\"")" 0.5
	test_equal "$(score repetition "\"a b c\"")" 1.0
	test_equal "$(score repetition,n=1,unit=chars "\"aaab\"")" 0.5
	test_equal "$(score cot "\"Step 1: a Step 2: b Step 3: c \\\\boxed{1}\"")" 0.3
	test_equal "$(score cot "\"Step 1: a Step 1: b Step 3: c \\\\boxed{1}\"")" 0.0
	test_equal "$(score cot "\"Step 1: Step 2: Step 3:\"")" 0.0
	test_equal "$(score cot "\"Step 1: Step 2: Step 3: Step 4: Step 5: Step 6: Step 7: \\\\boxed{1}\"")" 0.1
'
test_case 'olympiad-accuracy' '
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{\\\\dfrac{3}{2}}\"" "answer=\"\$\\\\frac{3}{2}\$\"")" 1.0
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{3:2}\"" "answer=\"3/2\"")" 1.0
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{\\uff11\\uff12}\"" "answer=\"12\"")" 1.0
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{5\\\\text{ m/s}}\"" "answer=\"5\"")" 1.0
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{12 \\u5398\\u7c73}\"" "answer=\"12\"")" 1.0
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{1000}\"" "answer=\"1,000\"")" 1.0
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{100.5}\"" "answer=\"100\"")" 1.0
	# off by 10 %: 0.99 exp(-0.5)
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{110}\"" "answer=\"100\"" | cut -c 1-8)" 0.600465
	test_equal "$(score olympiad-accuracy,close=off "\"\\\\boxed{110}\"" "answer=\"100\"")" 0.0
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{x}\"" "answer=\"y\"")" 0.0
	test_equal "$(score olympiad-accuracy "\"100\"" "answer=\"100\"")" 0.0
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{1}, \\\\boxed{5}\"" "answer=\"1, 2\"" "is_multiple_answer=true")" 0.5
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{2,1}\"" "answer=[\"1\",\"2\"]")" 1.0
	test_equal "$(score olympiad-accuracy "\"\\\\boxed{1}\"")" null
'
test_case 'olympiad-format' '
	test_equal "$(score olympiad-format "\"a\"")" 0.0
	test_equal "$(score olympiad-format "\"\\\\boxed{1}\"")" 1.0
	test_equal "$(score olympiad-format "\"\\\\boxed{1} \\\\boxed{2}\"")" 0.7
	test_equal "$(score olympiad-format "\"\\\\boxed{1} \\\\boxed{2} \\\\boxed{3}\"" | cut -c 1-3)" 0.4
	test_equal "$(score olympiad-format "\"\\\\boxed{1} $(printf "%0300d" 0)\"")" 0.7
'
test_case 'olympiad-quality' '
	# 4 characters: no reasoning, 0.3 * 0.3 * 4 / 100, no repetition
	test_equal "$(score olympiad-quality "\"abcd\"" | cut -c 1-6)" 0.3036
	test_equal "$(score olympiad-quality "\"a=1 b=2 c=3 +-*/+ step, therefore \\\\boxed{1}\"" | cut -c 1-4)" 0.73
'
test_case 'hostile replies take no time and no memory' '
	hostile() { awk -v s="$1" -v n="$2" -v e="$3" "BEGIN { printf \"{\\\"text\\\":\\\"\"; while (n--) printf \"%s\", s; print e \"\\\",\\\"answer\\\":\\\"1\\\",\\\"nums\\\":[1,2],\\\"target\\\":3}\" }"; }
	{ hostile "(" 100000 ""; hostile 7 2000000 ""; hostile "\\\\\\\\boxed{" 200000 ""; hostile "\\\\\\\\boxed{" 100000 "$(awk "BEGIN { for (i = 0; i < 100000; i++) printf \"}\" }")"
	  hostile "\\\\\\\\boxed{9^(9^(9^9))}" 1 ""; hostile "answer " 200000 ""; hostile "#### " 200000 ""; hostile "<answer>" 100000 "((((1</answer>"
	  hostile "<answer>(" 1 "$(awk "BEGIN { for (i = 0; i < 100000; i++) printf \"(\" }")</answer>"; hostile "- " 300000 ""; hostile "\\\\n" 500000 "" ; hostile "\\\\\\\\frac{" 100000 "\\\\\\\\boxed{"; } >in.jsonl
	timeout --foreground 600 tw-reward -q gsm8k-accuracy gsm8k-format math format countdown exact f1 multiple-choice*0 length \
	    repetition cot olympiad-accuracy olympiad-format olympiad-quality in.jsonl >out
	test_equal "$(wc -l <out | tr -d " ")" 12
	test_equal "$(grep -c "\"reward\":null" out)" 0
'
test_done
