# chat.awk - short conversations for the built-in model, as chat records: sums, differences, counting,
# opposites, colours, capitals, greetings. awk -v seed=1 -v rows=1000 -f chat.awk
function pick(list,    n, a) { n = split(list, a, "|"); return a[1 + int(rand() * n)] }
function say(q, a) { printf "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"},{\"role\":\"assistant\",\"content\":\"%s\"}]}\n", q, a }
function sum(a, b,    q) {
    q = pick("What is %d + %d?|%d + %d = ?|How much is %d + %d?|Add %d and %d.|What is %d plus %d?|Can you add %d and %d?|Please compute %d + %d.|What do you get when you add %d and %d?")
    say(sprintf(q, a, b), sprintf(pick("%d + %d = %d.|The answer is %d + %d = %d."), a, b, a + b))
}
function diff(a, b,    q) {
    q = pick("What is %d - %d?|How much is %d - %d?|What is %d minus %d?|Please compute %d - %d.")
    say(sprintf(q, a, b), sprintf("%d - %d = %d.", a, b, a - b))
}
function pair(list, ask, answer, back,    n, a, p, q) {
    n = split(list, a, "|")
    split(a[1 + int(rand() * n)], p, "=")
    if (back && rand() < 0.5) { q = p[1]; p[1] = p[2]; p[2] = q }
    say(sprintf(pick(ask), p[1]), sprintf(answer, p[1], p[2]))
}
function count(    n, i, s, from) {
    n = 2 + int(rand() * 9)
    for (i = 1; i <= n; i++)
        s = s (i > 1 ? ", " : "") i
    if (rand() < 0.5)
        say(sprintf(pick("Count to %d.|Please count to %d.|Can you count to %d?|Count from 1 to %d."), n), s ".")
    else {
        from = int(rand() * 99)
        say(sprintf(pick("What comes after %d?|Which number comes after %d?|What number follows %d?"), from), sprintf("After %d comes %d.", from, from + 1))
    }
}
BEGIN {
    srand(seed)
    capitals = "France=Paris|Germany=Berlin|Italy=Rome|Spain=Madrid|Japan=Tokyo|China=Beijing|Russia=Moscow|England=London|Egypt=Cairo|Greece=Athens|India=New Delhi|Canada=Ottawa|Norway=Oslo|Sweden=Stockholm|Poland=Warsaw|Austria=Vienna|Portugal=Lisbon|Ireland=Dublin|Finland=Helsinki|Turkey=Ankara|Cuba=Havana|Peru=Lima|Kenya=Nairobi|Thailand=Bangkok"
    opposites = "hot=cold|big=small|fast=slow|up=down|left=right|day=night|old=young|high=low|happy=sad|light=dark|open=closed|early=late|near=far|hard=soft|rich=poor|wet=dry|full=empty|strong=weak|loud=quiet|first=last"
    colours = "the sky=blue|grass=green|a banana=yellow|snow=white|a tomato=red|coal=black|an orange=orange|milk=white|the sun=yellow|a strawberry=red|a leaf=green|the sea=blue"
    sounds = "a dog=barks|a cat=meows|a cow=moos|a duck=quacks|a lion=roars|a sheep=bleats|a bird=sings|a frog=croaks|a horse=neighs|a wolf=howls"
    days = "Monday=Tuesday|Tuesday=Wednesday|Wednesday=Thursday|Thursday=Friday|Friday=Saturday|Saturday=Sunday|Sunday=Monday"
    hello = "Hello!|Hi!|Hello|Hi there!|Good morning!|Hey!|Good evening!|Hi"
    for (i = 0; i < rows; i++) {
        r = rand()
        if (r < 0.34)
            sum(int(rand() * 10), int(rand() * 10))
        else if (r < 0.52)
            sum(int(rand() * 100), int(rand() * 100))
        else if (r < 0.60) {
            b = int(rand() * 10)
            diff(b + int(rand() * 10), b)
        } else if (r < 0.66)
            count()
        else if (r < 0.76)
            pair(capitals, "What is the capital of %s?|Which city is the capital of %s?|Do you know the capital of %s?|Tell me the capital of %s.", "The capital of %s is %s.", 0)
        else if (r < 0.82)
            pair(opposites, "What is the opposite of %s?|Tell me the opposite of %s.|Which word is the opposite of %s?", "The opposite of %s is %s.", 1)
        else if (r < 0.87)
            pair(colours, "What color is %s?|Which color is %s?|Tell me the color of %s.", "The color of %s is %s.", 0)
        else if (r < 0.90)
            pair(sounds, "What sound does %s make?|What does %s do when it makes a sound?", "When it makes a sound, %s %s.", 0)
        else if (r < 0.93)
            pair(days, "Which day comes after %s?|What day is it after %s?", "After %s comes %s.", 0)
        else if (r < 0.97)
            say(pick(hello), pick("Hello! How can I help you today?|Hi! What can I do for you?|Hello! What would you like to know?"))
        else if (r < 0.985)
            say(pick("Thank you!|Thanks!|Thanks a lot!|Thank you very much."), pick("You are welcome!|You are welcome! Is there anything else you would like to know?"))
        else
            say(pick("Goodbye!|Bye!|See you later!|Good night!"), pick("Goodbye! Have a nice day!|Goodbye! It was nice to talk to you."))
    }
}
