"""What advertisements and resumes say besides the work: words, names and sentences that are no reason for a match.

English only, as the stop words are. A word that may name a skill is not listed: "management" stays, "manage" does not.
"""

from __future__ import annotations

import re
from functools import cache

_VERBS = """
    accept accomplish achieve acquire act adapt add adhere advance advise agree aid aim allow analyse analyze answer
    appear apply appreciate approach arrange arrive ask assess assign assist associate assume assure attend attract
    avoid base bear become begin behave belong benefit bring build call carry cause challenge change check choose
    claim clarify collaborate collect combine come commit communicate compare complete comply conduct confirm connect
    consider consist consult contact contain continue contribute convince cooperate coordinate correct correspond
    count cover create deal decide declare dedicate deepen define deliver demonstrate depend describe deserve desire
    determine develop differ direct discuss do earn ease employ enable encourage enforce engage enhance enjoy enroll
    ensure enter equip establish evaluate examine exceed excel exchange execute exhibit exist expand expect experience
    explain explore express extend facilitate feel fill finalise finalize find finish fit focus follow foster fulfil
    fulfill function gain gather get give go grow guard guide handle happen have heed help hire hold identify
    implement improve include increase indicate influence inform initiate inspire intend interact interview introduce
    investigate invite involve issue join judge keep know last lead learn leave let like listen live look love
    maintain make manage match matter maximise maximize mean measure meet mention minimise minimize moderate motivate
    move multitask need note notice observe obtain occur offer operate oversee own pace participate partner pass pay
    perform pick place play please possess post prefer prepare present prioritise prioritize proceed produce promote
    propose protect prove provide pull push put qualify raise reach read receive recognise recognize recommend reduce
    refer reflect regard relate relocate rely remain remember repeat represent request require resolve respect respond
    rest result retain review reward run save say see seek seem select send serve set settle share show solve sort
    speak spend spot staff stand start stay stop strengthen strive study submit succeed suggest suit supervise support
    surprise sustain tackle take talk tell tend thank think thrive track treat trust try turn understand undertake
    update use utilise utilize value vary verify visit wait want watch welcome win wish work
"""
_IRREGULAR_FORMS = """
    became been began begun brought built came chose chosen did does done felt found gave given goes gone got grew
    grown had has held kept knew known led left made meant met oversaw overseen paid ran said saw seen sent shown
    sought spent spoke spoken stood taken thought told took understood undertaken undertook went
"""
_OTHER_WORDS = """
    ability able above abroad academic accordance according accountable accurate additional adequate advancement
    advantage advertised afraid age aim all along also alternative amazing ambitious among amount annual anyone
    anything applicable applicant applicants application applications appropriate area areas around aspect aspects
    asset assigned assistance assistant associate associated atmosphere attention attitude attractive authorities
    authorization authorized available average award awards background bad base based basic basics basis benefits best
    better big bonus both branch brief broad budget busy calls calm candidate candidates capability capable career
    careers case center central centre certain chance cheerful citizen citizens clean clear client clients close
    closely colleague colleagues combination comfortable commitment committed common communication community companies
    company compensation competence competencies competency competitive complex comprehensive computer condition
    conditions confidence confident consideration consistently constant contact contacts contract contribution
    corporate country creative credible culture current currently cv daily date day days deadline deadlines decent
    decision decisions dedicated dedication deep degree department departments description desirable desired detail
    detailed details different difficult diploma direct discipline discount discounts distinct diverse diversity
    domain doubt doubtful driven duration duties duty dynamic each eager earlier early ease easy education educational
    effective effectively efficiency efficient efficiently effort efforts eight eighteen eighty either eleven eligible
    else email employee employees employer employers employment energetic enough enthusiasm enthusiastic entire entry
    environment environments equal equally equivalent especially essential etc ethic even evening evenings event every
    everyday everyone everything exact excellent exceptional exciting existing expectations experienced expert
    expertise extensive external extra fair familiar familiarity family fantastic fast fax female few field fields
    fifteen fifty first five flexibility flexible fluent following form format former forty forward four fourteen free
    frequent fresh friend friendly friends full fully fun functional functions further future gender general generally
    generous global goal goals good graduate great greatest green group groups growing growth guidance half hard
    headquarters healthy helpful hereby hes high highest highly history holder holders holiday holidays home honest
    hour hourly hours hr hrs hundred ideal ideally ideas immediate important inclusive independent independently
    individual individuals industries industry information initial initiative inner innovative integrity interest
    interested interesting internal international interpersonal interviews intro job jobs kind knowledge knowledgeable
    known large largest late lately later latest leader leaders leadership leading learner least legal length less
    level levels life limited line list little local location locations long lot love low main major male man manner
    many marital market married match mature maximum medium member members mid middle milestone mind mindset minimum
    minute minutes mission mix mobile modern moment month monthly months morning mornings mostly motivated motivation
    multiple must name nationality nationwide native nature near necessary neighbor neighbour new next nice night
    nights nine nineteen ninety normal notable nothing numerous objective objectives office offices ongoing only
    onsite open opening openings operation operational operations opportunities opportunity order organisation
    organisational organised organization organizational organized oriented outgoing outstanding overall own pace
    package paid part particular parties partners party passion passionate past pay people per perfect performance
    period perk perks permanent person personable personal personality personally personnel phone place places
    platform player please plus point points polite position positions positive possibility possible potential
    powerful practical practice practices present pressure previous previously primary prior priority private pro
    proactive problem problems professional professionalism professionally professionals proficiency proficient
    profile profit program progress proper proud proven public punctual purpose qualification qualifications qualified
    quality quick quickly range rapidly rate rates readiness ready real reasonable recent recently recognized
    recruiter recruiters recruiting recruitment reference references referral regarding region regional regular
    regularly related relation relationship relationships relevant reliable religion remote reports reputable
    reputation requirement requirements respectful response responsibilities responsibility responsible responsive
    result results resume resumes retirement rewarding right role roles room salaries salary scale schedule scope
    season second secondary self senior sense sensible separate serious seven seventeen seventy several sexual shift
    shifts short similar simple single site sites situation situations six sixteen sixty size skill skilled skills
    small smart social soft solid solution solutions someone something soon sound special specific spirit staff stage
    standard standards starter state station status steady step steps still strategic strategies strategy street
    strength strengths strong stronger student students style subject success successful successfully such suitable
    summary superb superior supervisor supportive sure system systems talent talented target task tasks team teams
    teamwork technique techniques technology telephone temp temporary ten term terms thanks therefore thing things
    third thirteen thirty thorough thoroughly thousand three tight time timely times title today together tomorrow
    tool tools top total track tremendous true tuition twelve twenty two type types typical typing ultimate under
    unique unit united upcoming urgent us user users usual vacancies vacancy vacation valid valuable values variety
    various vast verbal versatile veteran vibrant vital wage wages way ways week weekend weekends weekly weeks well
    whether whole wide willing willingness win winning women won worker workers workforce workplace world worldwide
    wpm written year yearly years young zero
"""
_NAMES = """
    africa african alabama alaska america american amsterdam apr april arizona arkansas asia asian atlanta aug august
    austin australia australian austria austrian bangalore barcelona beijing belgian belgium berlin birmingham bonn
    boston brazil britain british brussels budapest bulgaria california canada canadian carolina charlotte chennai
    chicago china chinese cincinnati cleveland co cologne colorado columbus connecticut copenhagen corp corporation
    czech dakota dallas danish dec december delaware delhi denmark denver detroit dubai dublin dutch edinburgh egypt
    england english europe european feb february finland florida france frankfurt french fri friday geneva georgia
    german germany glasgow gmbh greece greek hamburg hampshire hawaii helsinki holdings houston hungary hyderabad
    idaho illinois inc india indian indiana indonesia iowa ireland irish israel italian italy jacksonville jan january
    japan japanese jersey jul july jun june kansas kentucky kenya korea latin leeds lisbon liverpool llc london
    louisiana ltd lyon madrid maine malaysia manchester mar march maryland massachusetts melbourne mexican mexico
    miami michigan milan milwaukee minneapolis minnesota mississippi missouri mon monday montana montreal moscow
    mumbai munich nashville nebraska netherlands nevada nigeria norway norwegian nov november oct october ohio
    oklahoma oregon oslo pakistan paris pennsylvania philadelphia philippines phoenix pittsburgh plc poland polish
    portland portugal portuguese prague pune raleigh romania rome russia russian sacramento sat saturday scotland
    scottish seattle seoul sep sept september serbia shanghai singapore slovakia slovenia spain spanish stockholm
    stuttgart sun sunday sweden swedish swiss switzerland sydney tampa tennessee texas thailand thu thur thurs
    thursday tokyo toronto tue tues tuesday turkey turkish ukraine utah vancouver vermont vienna vietnam virginia
    wales warsaw washington wed wednesday wisconsin wyoming york zurich
"""
_ABBREVIATIONS = """
    1099 AA AK AL AM APPROX AR ASAP AZ BA BS BSC C2C C2H CA CEO CFO CO COO CT CTH CTO CV DC DE DOB DOE DR EAD EEO EOE
    EU EVP FAQ FL FTE FYI GA GC GED GMBH GPA H1B HI HM HR HRS IA ID IL IN INC INCL IT JR KPI KPIS KS KY LA LLC LLP LTD
    MA MAX MBA MD ME MFD MI MIN MN MO MOS MR MRS MS MSC MT NA NC ND NE NH NJ NM NV NY NYC OH OK OPT OR PA PHD PLC PM
    PS PTO RE RFP RI ROI SC SD SF SLA SOP SOPS SR SSN SVP TBA TBD TN TN1 TX UAE UK US USA USC UT VA VP VT W2 WA WI WV
    WY YR YRS
"""
_SENTENCE = re.compile(
    r"""
    \bequal[\s-]opportunit | \baffirmative\saction | \bwithout\s(?:regard|respect)\sto\b | \be-?verify\b
    | \bbackground\s(?:check|investigation|screening)s?\b | \bdrug[\s-](?:screen|test|free)
    | \breasonable\saccommodation | \bveteran\sstatus\b | \beoe\b | \bwork\sauthori[sz]ation\b | \bvisa\ssponsor
    | \breferences?\s(?:are\s|will\sbe\s|furnished\s|provided\s)*(?:available\s)?(?:up)?on\srequest\b
    | \b(?:i\s)?(?:hereby\s)?declare\sthat\b | \btrue\s(?:and\scorrect\s)?to\sthe\sbest\sof\smy\b
    | \b(?:other|additional)\sduties\b | \bduties\sas\s(?:assigned|required)\b
    | \bsend\s(?:us\s|me\s)?(?:your|a|an|the)\s(?:updated\s)?(?:resume|cv|application)\b | \bhow\sto\sapply\b
    | ^to\sapply\b | ^apply\s(?:now|today|online|here|by|at|with)\b
    | \bplease\s(?:apply|send|email|forward|call|contact|visit)\b | \bthank\syou\sfor\syour\sinterest
    | \bonly\s(?:candidates|applicants|those)\b.*\b(?:contacted|selected|considered)\b
    | \bno\s(?:phone\s)?calls\b | \bcompetitive\s(?:salary|pay|wages?|compensation|benefits)\b
    | \bpaid\s(?:time\soff|holidays?|vacations?|leave)\b | \b(?:dental|vision)\sinsurance\b
    | \bmedical,\sdental\b | \btuition\sreimbursement\b | \bbenefits\s(?:package|include)\b | \bsalary\s?(?:range|:)
    | \bdate\sof\sbirth\b | \bmarital\sstatus\b | \bplace\sof\sbirth\b | \bnationality\s?:
    | \b(?:job|requisition|req|posting)\s?(?:id|number|\#|no\.?)\s?: | \bw-?2\sonly\b | \bc2c\b
    | \bposted\s?(?::|on\b|\d)
    | ^\W*(?:\S+@\S+|(?:https?://|www\.)\S+|\S*linkedin\.com\S*)\W*$
    | ^(?:phone|tel|telephone|mobile|cell|fax|e-?mail|address|location|duration|rate|job\stype|shift|start\sdate)\s?:
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Sentences about the formalities: legal notices, contact data, how to apply, pay and benefits."""


def is_formality(sentence: str) -> bool:
    """Whether a sentence is about the formalities of an application, and not about the work."""
    return _SENTENCE.search(sentence) is not None


def is_generic(word: str, written: str) -> bool:
    """Whether a word says nothing about the work: "experience", "team", "NY".

    Args:
        word: The word in lower case.
        written: The word as the text writes it; some abbreviations are words otherwise ("it", "or").
    """
    return word in _generic_words() or (written.isupper() and written in _abbreviations()) or _is_number(word)


def _is_number(word: str) -> bool:
    return word[0].isdigit() and sum(letter.isalpha() for letter in word) <= 2


@cache
def _generic_words() -> frozenset[str]:
    words = {*_OTHER_WORDS.split(), *_IRREGULAR_FORMS.split(), *_NAMES.split()}
    for verb in _VERBS.split():
        words |= _verb_forms(verb)
    return frozenset(words)


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
