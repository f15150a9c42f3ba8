"""What advertisements and resumes say besides the work: contact data, formalities, and words that name no skill.

English only, as the stop words are. Sentences, addresses and the like are recognised in their context. Of single words
only those are left out that name no skill in any profession; common words that may be part of one ("leadership", "real"
estate) stay terms and weigh little.
"""

from __future__ import annotations

import re
from functools import cache

from decoder2vec.text.bm25 import stem

_EMPTY_WORDS = """
    ability able above abroad accordance according additional adequate advantage all along also alternative
    amazing ambitious among amount annual anyone anything applicable applicant applicants appropriate area areas
    around aspect aspects assigned atmosphere attitude attractive available average award awards background bad
    based basics basis best better bonus both broad busy candidate candidates capability capable certain chance
    cheerful closely colleague colleagues combination comfortable commitment committed common competence
    competencies competency competitive comprehensive confidence confident consideration consistently constant
    contribution corp country credible current currently cv daily date day days deadline deadlines decent
    dedicated dedication degree department departments description desirable desired detailed details different
    difficult distinct diverse doubt doubtful duration duties duty dynamic each eager earlier ease easy effective
    effectively efficiency efficient efficiently effort efforts eight eighteen eighty either eleven eligible else
    employer employers energetic enough enthusiasm enthusiastic entire equal equally equivalent especially
    essential etc even evening evenings every everyday everyone everything exact excellent exceptional exciting
    existing expectations experience experienced expertise extensive extra fair familiar familiarity fantastic few
    fifteen fifty five following former forty forward four fourteen frequent fresh friendly fully fun further
    future generally generous gmbh goal goals good great greatest half headquarters helpful hereby hes highest
    highly holiday holidays honest hour hourly hours hr hrs hundred ideal ideally ideas immediate important inc
    inclusive independent independently individual individuals initial initiative inner innovative interest
    interested interesting job jobs jr kind knowledgeable known large largest late lately later latest least
    length less level levels limited little llc location locations lot ltd main manner many married mature maximum
    member members mid middle mind mindset minimum mix modern moment month monthly months morning mornings mostly
    motivated motivation mr mrs multiple must name nationality nationwide near necessary new next nice nine
    nineteen ninety normal notable nothing numerous objective objectives ongoing only onsite openings
    opportunities opportunity oriented outgoing outstanding overall own pace particular passion passionate past
    per perfect period perk perks permanent person personable personality personally place places please plus
    polite position positions positive possibility possible potential powerful practical previous previously prior
    priority proactive proficiency proficient profile proper proud proven punctual purpose qualification
    qualifications qualified quick quickly range rapidly readiness ready reasonable recent recently regarding
    regular regularly related relevant reliable reputable reputation respectful responsibilities responsibility
    responsible responsive resume resumes rewarding role roles scope sense sensible seven seventeen seventy
    several similar single situation situations six sixteen sixty size skill skilled skills solid someone
    something soon specific spirit sr starter steady step steps still strengths strong stronger successful
    successfully such suitable summary superb superior supportive sure talented task tasks team ten term terms
    thanks therefore thing things third thirteen thirty thorough thoroughly thousand three tight timely times
    today together tomorrow top tremendous true twelve twenty two type types typical ultimate under unique united
    upcoming urgent us usual vacancies vacancy vacation valid valuable values variety various vast versatile
    vibrant vital way ways week weekend weekends weekly weeks well whether whole wide willing willingness win
    winning won worked workforce working workplace works worldwide year yearly years yr yrs zero
"""
"""Words of applications that name no skill: praise, time, numbers, the application itself."""
_EMPTY_VERBS = """
    accept accomplish achieve acquire aim allow appear appreciate arrive ask assume assure avoid become begin
    behave belong bring cause choose come comply consider consist contain continue contribute convince correspond
    decide declare dedicate deepen demonstrate depend deserve desire determine differ do earn ease employ enable
    encourage enhance enjoy enroll ensure enter equip exceed exist expand expect experience explore extend feel
    focus follow fulfil fulfill gain get give happen have heed include increase indicate intend invite involve
    join know last let like look love matter mean meet mention need note notice obtain occur offer own participate
    please possess prefer proceed prove provide put qualify regard relate relocate rely remain remember repeat
    request require respect respond result retain reward say see seek seem send spend start stay stop strengthen
    strive submit succeed suggest suit surprise sustain tackle talk tell tend thank thrive try understand
    undertake use utilise utilize vary want welcome win wish
"""
"""Verbs that name no skill, in their base form."""
_IRREGULAR_FORMS = """
    became been began begun brought came chose chosen did does done felt gave given goes gone got had has knew
    known meant met said saw seen sent sought spent spoke spoken told understood undertaken undertook went
"""
"""Irregular forms of these verbs."""
_PLACES_AND_DATES = """
    africa alabama alaska america amsterdam apr april arizona arkansas asia atlanta aug august australia austria
    bangalore barcelona beijing belgium berlin birmingham bonn boston brazil britain brussels budapest bulgaria
    california canada carolina chennai chicago cincinnati cleveland colorado connecticut copenhagen dakota dallas
    dec december delaware delhi denmark denver detroit dubai dublin edinburgh egypt england europe feb february
    finland florida france frankfurt fri friday germany glasgow greece hamburg hampshire hawaii helsinki houston
    hungary hyderabad idaho illinois india indiana indonesia iowa ireland israel italy jacksonville jan january
    japan jul july jun june kansas kentucky kenya korea leeds lisbon liverpool london louisiana lyon madrid maine
    malaysia manchester maryland massachusetts melbourne mexico miami michigan milan milwaukee minneapolis
    minnesota mississippi missouri monday montana montreal moscow mumbai munich nashville nebraska netherlands
    nevada nigeria norway nov november oct october ohio oklahoma oregon oslo pakistan paris pennsylvania
    philadelphia philippines pittsburgh poland portland portugal prague pune raleigh romania rome russia
    sacramento saturday scotland seattle seoul sep sept september serbia shanghai singapore slovakia slovenia
    spain stockholm stuttgart sunday sweden switzerland sydney tampa tennessee texas thailand thu thur thurs
    thursday tokyo toronto tue tues tuesday ukraine utah vancouver vermont vienna vietnam virginia wales warsaw
    washington wednesday wisconsin wyoming york zurich
"""
"""Towns, states and countries, days and months; no languages."""
_COMMON_WORDS = """
    academic accurate advancement afraid african age american application applications asian asset assistance
    assistant associate associated attention austin australian austrian authorities authorization authorized base
    basic belgian benefits big branch brief british budget built calls calm canadian career careers case center
    central centre charlotte china citizen citizens class clean clear client clients close co college colleges
    cologne columbus communication community companies company compensation complex computer condition conditions
    contact contacts contract corporate corporation course courses creative culture customer customers dean
    decision decisions deep detail diploma direct discipline discount discounts diversity domain driven driver
    early education educational email employee employees employment english entry environment environments ethic
    european event excel expert external family fast fax female field fields first flexibility flexible fluent
    form format found free friend friends full functional functions gender general geneva georgia global gpa
    graduate green grew group groups growing grown growth guidance hard healthy held high history holder holders
    holdings home hr indian industries industry information integrity internal international interpersonal
    interviews intro jersey kept knowledge language languages leader leaders leadership leading learner led left
    licence license life line list local long low made major male man management manager managers mar marital
    match medium mexican microsoft milestone minute minutes mission mobile mon ms native nature neighbor neighbour
    night nights office offices open opening operation operational operations order organisation organisational
    organised organization organizational organized outlook oversaw overseen paid part parties partners party pay
    people performance personal personnel phoenix phone platform player point points powerpoint practice practices
    present pressure primary private pro problem problems professional professionalism professionally
    professionals profit progress public quality ran rate rates real recognized recruiter recruiters recruiting
    recruitment reference references referral region regional relation relationship relationships religion remote
    reports requirement requirements response retirement right room salaries salary sat scale schedule school
    schools scottish season second secondary self senior separate serious sexual shift shifts short shown simple
    site sites small smart social soft solution solutions sound special speed staff stage standard standards state
    station status stood strategic strategies strategy street strength student students style subject success sun
    supervisor swiss system systems taken talent target teams teamwork technique techniques technology telephone
    temp temporary thought time title took tool tools total track trained training tuition turkey typing unit
    university user users verbal veteran volunteer volunteers wage wages women word work worker workers world wpm
    written young
"""
"""Words of many applications that may be part of the name of a skill, or of a language."""
_COMMON_VERBS = """
    act adapt add adhere advance advise agree aid answer apply approach arrange assess assign assist associate
    attend attract base bear benefit build call carry challenge change check claim clarify collaborate collect
    combine commit communicate compare complete conduct confirm connect contact cooperate coordinate correct count
    cover create deal define deliver describe direct discuss enforce engage establish evaluate examine exchange
    execute exhibit explain express facilitate fill finalise finalize find finish fit foster function gather grow
    guard guide handle help hire hold identify implement improve influence inform initiate inspire interact
    interview introduce investigate issue judge keep lead learn leave listen live maintain make manage maximise
    maximize measure minimise minimize moderate motivate move multitask observe operate oversee partner pass pay
    perform pick play post prepare present prioritise prioritize produce promote propose protect pull push raise
    reach read receive recognise recognize recommend reduce refer reflect represent resolve rest review run save
    select serve set settle share show solve sort speak spot staff stand study supervise support take think track
    treat trust turn update value verify visit wait watch
"""
"""Verbs of many applications that may name a skill, in their base form."""
_ABBREVIATIONS = """
    1099 AK ASAP AZ C2C C2H CORP DOB DOE EAD EEO EOE FAQ FL FYI GA GMBH H1B HI HRS IA INC IL KS KY LLC LLP LTD MFD MN
    NC ND NE NH NJ NM NV NY NYC OH OK PTO RI SD SSN TBA TBD TN TN1 TX UAE UK US USA UT VT W2 WA WI WV WY YR YRS
"""
"""Abbreviations of contracts, companies and states; MD, CT, OR and other states that are also skills are not listed."""
_SENTENCE = re.compile(
    r"""
    \bequal[\s-](?:employment[\s-])?opportunity\s(?:employer|is\sthe\slaw) | \bequal\semployment\sopportunity\b
    | \baffirmative\saction\s(?:/\s?)?(?:equal|employer)
    | \bwithout\s(?:regard|respect)\sto\b.{0,200}\b(?:race|age|religion|gender)\b
    | \bparticipat\w+\sin\se-?verify\b | \be-?verify\s(?:employer|participant)
    | \b(?:background|drug)[\s-](?:check|investigation|screen|test)\w*.{0,99}\b(?:required|prior\sto|upon|employment)\b
    | \b(?:pass|undergo|subject\sto|complete)\b.{0,200}\b(?:background|drug)[\s-](?:check|investigation|screen|test)
    | \bdrug-free\sworkplace\b | \breasonable\saccommodations?\s(?:may|will|are|is|can)\b
    | \bveteran\sstatus\b | \beoe\b
    | \b(?:require|valid|have|proof\sof)\swork\sauthori[sz]ation\b | \b(?:no|not|unable)\b.{0,200}\bvisa\ssponsor
    | \breferences?\s(?:are\s|will\sbe\s|furnished\s|provided\s)*(?:available\s)?(?:up)?on\srequest\b
    | \b(?:i\s)?hereby\sdeclare\b | ^i\sdeclare\sthat\b | \btrue\s(?:and\scorrect\s)?to\sthe\sbest\sof\smy\b
    | \b(?:other|additional)\sduties\s(?:as|may|will)\b | \bduties\sas\s(?:assigned|required)\b
    | \bsend\s(?:us\s|me\s)?(?:your|a|an|the)\s(?:updated\s)?(?:resume|cv|application)\b
    | ^(?:how\s)?to\sapply\b | ^apply\s(?:now|today|online|here|by|at|with)\b
    | \bplease\s(?:apply|send|email|forward|call|contact|visit)\b | \bthank\syou\sfor\syour\sinterest
    | \bonly\s(?:candidates|applicants|those\sselected)\b.{0,200}\b(?:contacted|selected|considered)\b
    | \bno\s(?:phone\s)?calls\b | \bcompetitive\s(?:salary|pay|wages?|compensation|benefits)\b
    | ^paid\s(?:time\soff|holidays?|vacations?|leave)\b
    | \b(?:health|medical),?\s(?:and\s)?dental\b.{0,200}\b(?:vision|insurance|401|pto|benefits)\b
    | \b401\s?\(?k\)?\b.{0,200}\bmatch
    | \bbenefits\s(?:package\s)?include\b | \bsalary(?:\srange)?\s?: | \btuition\sreimbursement\s?(?:,|and\b|$)
    | ^date\sof\sbirth\b | ^marital\sstatus\b | ^place\sof\sbirth\b | \bnationality\s?:
    | \b(?:job|requisition|req|posting)\s?(?:id|number|\#|no\.?)\s?: | \bw-?2\sonly\b | \b(?:no|not|on)\sc2c\b | ^c2c\b
    | ^posted\s?(?::|\d|on\s\w+\s\d)
    | ^\W*(?:\S+@\S+|(?:https?://|www\.)\S+|\S*linkedin\.com\S*)\W*$
    | ^(?:phone|tel|telephone|mobile|cell|fax|e-?mail|address|location|duration|rate|job\stype|shift|start\sdate)\s?:
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Sentences about the formalities: legal notices, contact data, how to apply, pay and benefits."""
_STREET = r"(?:Street|St\.|Avenue|Ave\.?|Road|Rd\.?|Lane|Drive|Boulevard|Blvd\.?)"
_CONTACT_DATA = re.compile(
    rf"""
    \b[\w.+-]{{1,64}}@[\w.-]+ | (?:https?://|www\.|\blinkedin\.com/)\S+
    | \b\d+\s(?:[A-Z]\w+\s){{1,2}}{_STREET}(?!\w) | \b[A-Z]\w+\s{_STREET}\s\d+
    | \b[A-Z][a-z]+(?:\s[A-Z][a-z]+){{0,2}},\s[A-Z]{{2}}\s\d{{5}}\b
    """,
    re.VERBOSE,
)
"""Addresses within a sentence: of e-mail, of web pages, of a street, and a town with its state and code."""
_NUMBER = re.compile(r"\d[\d.,]*(?:st|nd|rd|th|s|k|K|m|M|h|x|am|pm|AM|PM|hrs?|yrs?|mos?|min|months?|years?)?")
_VERB_CONTEXT = re.compile(
    r"(?:go|goes|going|gone|went)\s+(?:to|above|beyond|through|ahead|the|further|back|home|out)\b|excel\s+(?:in|at)\b",
    re.IGNORECASE,
)
"""Where "go" and "excel" are verbs, and neither a language nor a program."""
NAMES_LIKE_WORDS = {"go": "Go", "r": "R", "c": "C", "it": "IT", "or": "OR"}
"""Names of skills that are also words or initials in lower case, and how they are written."""
_BEFORE_ITEM, _AFTER_ITEM = re.compile(r"(?:^|[,;:/|(•·*-])\s?"), re.compile(r"\s?(?:$|[,;/|)])")
_NEAR = 20
"""Characters on each side of a word that tell whether a line is written in capitals."""


def is_formality(sentence: str) -> bool:
    """Whether a sentence is about the formalities of an application, and not about the work."""
    return _SENTENCE.search(sentence) is not None


def without_contact_data(line: str) -> str:
    """Return the line with spaces in place of addresses, so that offsets stay the same."""
    return _CONTACT_DATA.sub(lambda match: " " * len(match[0]), line)


def names_no_skill(word: str, line: str, begin: int, end: int) -> bool:
    """Whether a word names no skill where it stands: "experience", "NY", "go" in "go to".

    Args:
        word: The word in lower case.
        line: The line that it is in.
        begin: Index of its first letter in the line.
        end: Index after its last letter.
    """
    written = line[begin:end]
    if word in ("go", "excel") and _VERB_CONTEXT.match(line, begin):
        return True
    if name := NAMES_LIKE_WORDS.get(word):
        is_item = _BEFORE_ITEM.fullmatch(line[max(0, begin - 2) : begin].lstrip()) and _AFTER_ITEM.match(line, end)
        in_capitals = len(name) > 1 and line[max(0, begin - _NEAR) : end + _NEAR].isupper()
        return not is_item and (written != name or in_capitals)
    if word == "hr":
        return written != "HR"  # hours
    return word in _empty_words() or written in _abbreviations() or _NUMBER.fullmatch(written) is not None


def is_common(stem: str) -> bool:
    """Whether a word with this stem is in many advertisements and resumes, though it may be part of a skill's name."""
    return stem in _common_stems()


@cache
def _empty_words() -> frozenset[str]:
    words = {*_EMPTY_WORDS.split(), *_IRREGULAR_FORMS.split(), *_PLACES_AND_DATES.split()}
    return frozenset(words.union(*map(_verb_forms, _EMPTY_VERBS.split())))


@cache
def _common_stems() -> frozenset[str]:
    return frozenset(map(stem, [*_COMMON_WORDS.split(), *_COMMON_VERBS.split()]))


def _verb_forms(verb: str) -> set[str]:
    """Return the regular forms of a verb, with and without a doubled consonant; what is no word does no harm."""
    base = verb[:-1] if verb.endswith("e") else verb
    forms = {verb, f"{verb}s", f"{base}ed", f"{base}ing", f"{verb}{verb[-1]}ed", f"{verb}{verb[-1]}ing"}
    if verb.endswith("y"):
        forms |= {f"{verb[:-1]}ies", f"{verb[:-1]}ied"}
    if verb.endswith(("s", "sh", "ch", "x")):
        forms.add(f"{verb}es")
    return forms


@cache
def _abbreviations() -> frozenset[str]:
    return frozenset(_ABBREVIATIONS.split())
