"""Three small folders of documents with questions, written for this project; all names are invented.

About two thirds of the questions use other words than their document, as people who do not know it do. The others name
a thing by its name or code, for which words are the better evidence. Each question has one answer.
"""

from __future__ import annotations

from typing import NamedTuple


class Folder(NamedTuple):
    """Documents and the questions that they answer."""

    documents: dict[str, str]
    """Id -> text."""
    questions: dict[str, str]
    """Question -> id of the document that answers it."""


HANDBOOK = Folder(
    documents={
        "parental-leave": "Parental leave. Mothers and fathers receive sixteen weeks of paid leave after a birth or an "
        "adoption. Twelve further weeks without pay may follow.",
        "home-office": "Working remotely. Staff work from their own desk up to three days a week; Tuesdays are spent "
        "together in the office. How often you come in is agreed with your team lead.",
        "expenses": "Expenses. Hand in receipts within thirty days through the form FX-12. Amounts are paid with the "
        "next salary.",
        "travel": "Business trips. Trains are booked in second class. Flights need the approval of the head of "
        "department. How long you can stay at a hotel depends on the assignment.",
        "sick-leave": "Illness. Call your team lead before nine. From the third day on, a certificate from a doctor is "
        "needed.",
        "holidays": "Annual leave. Everybody has twenty-eight days off. Up to five unused days move to the next year "
        "and expire at the end of March.",
        "password": "Passwords. A password has fourteen characters or more and is stored in the vault Keyring. It is "
        "never sent by mail.",
        "laptop": "Equipment. Every new colleague gets a laptop and a screen. Broken devices are replaced by the help "
        "desk on floor 2.",
        "vpn": "Remote access. Outside the building, connect through the client Tunnelbear-K before opening internal "
        "pages. Error E-407 means that the certificate has expired.",
        "pension": "Pension scheme. The company pays five per cent of the salary into the fund Altersruh and doubles "
        "what you add.",
        "bonus": "Annual bonus. The bonus depends on the results of the company and is paid in April.",
        "notice": "Ending a contract. Either side gives three months' notice in writing, counted from the end of the "
        "month.",
        "probation": "First months. During the first six months either side can end the employment within two weeks.",
        "training-budget": "Learning. Each person may spend 1,200 euros a year on courses, books and conferences.",
        "bicycle": "Leasing a bicycle. You can ride a leased bicycle to work and home; the rate is deducted from the "
        "gross salary.",
        "canteen": "Lunch. The canteen on the ground floor serves warm meals from half past eleven to two. Vegans "
        "find a dish every day.",
        "parking": "Parking. Spaces in the garage are drawn by lot each quarter. Chargers for electric cars are on "
        "level -2.",
        "visitors": "Guests. Register guests at the reception a day before. They wear a badge and are never left "
        "alone.",
        "fire": "Fire alarm. Leave through the nearest staircase, do not use the lifts, and meet at the fountain.",
        "first-aid": "Injuries. Boxes with bandages hang beside every kitchen. Ilse Brandtner and Tomo Radek are "
        "trained helpers.",
        "complaints": "Harassment. Report it to the confidential adviser, Nadia Oyelaran. Nobody is told your name.",
        "baby-room": "Quiet room. Room 117 has a couch and a fridge. It can be used for prayer, rest, or to feed an "
        "infant.",
        "overtime": "Overtime. Extra hours are written down and taken as free time within three months.",
        "dogs": "Animals. Dogs are welcome on floor 3 if all who sit there agree.",
        "payslip": "Pay day. Salaries arrive on the 25th. The slip is in the portal Lohnbox.",
    },
    questions={
        "How long can I stay at home with my baby?": "parental-leave",
        "What should I do when I have the flu?": "sick-leave",
        "Where can I get a bandage?": "first-aid",
        "May I bring my puppy?": "dogs",
        "My computer does not start any more, who can help me?": "laptop",
        "How do I get my money back for a taxi?": "expenses",
        "What happens to vacation that I did not take?": "holidays",
        "I want to quit, how soon can I leave?": "notice",
        "Who can I talk to if a colleague bullies me?": "complaints",
        "E-407": "vpn",
        "form FX-12": "expenses",
        "Altersruh": "pension",
        "Nadia Oyelaran": "complaints",
        "what is Lohnbox": "payslip",
        "Where can I charge my car?": "parking",
    },
)

HOUSEHOLD = Folder(
    documents={
        "descaling": "Descale the kettle every month. Boil water with two spoons of citric acid, wait ten minutes, and "
        "rinse twice.",
        "fridge-door": "If the refrigerator door does not close tightly, wash the rubber seal with warm soapy water "
        "and dry it.",
        "freezer": "Thaw the freezer once a year. A layer of ice thicker than half a centimetre doubles its use of "
        "electricity.",
        "dishwasher-smell": "A bad smell from the dishwasher comes from the sieve at the bottom. Take it out and brush "
        "it under hot water.",
        "washing-error": "The washing machine shows F21 when water does not drain. Open the flap at the front and "
        "empty the filter.",
        "wool": "Wash woollens at 30 degrees without spinning, and dry them lying flat.",
        "red-wine": "Red wine on a carpet: press it with a cloth, then cover it with salt and vacuum after an hour.",
        "candle-wax": "Wax on a tablecloth comes off with a warm iron and a sheet of paper.",
        "drill": "Before drilling, search for pipes and cables with the detector Lodar 3. Concrete needs the hammer "
        "mode.",
        "radiator": "When a radiator stays cold at the top, open its valve with the small square key until water "
        "comes.",
        "boiler": "The pressure of the boiler Thermika 40 should lie between 1.2 and 1.8 bar. Refill it through the "
        "blue tap.",
        "mould": "Black spots in the corner of a bedroom are mould. Air the room three times a day and keep furniture "
        "away from the wall.",
        "fuse": "If the lights go out in one room only, look into the grey cabinet in the hall and push the lever up.",
        "smoke-detector": "A smoke detector that chirps once a minute needs a battery, type CR-123.",
        "bicycle-chain": "Oil the bicycle chain after rain. Wipe off what is too much.",
        "flat-tyre": "Mend an inner tube: find the hole in a bucket of water, roughen the rubber, glue, wait five "
        "minutes, and press the patch on.",
        "tomatoes": "Tomatoes are watered at the root in the morning; wet leaves bring blight.",
        "roses": "Cut roses back in March to three eyes above the ground.",
        "lawn": "Mow the lawn not shorter than four centimetres, and leave it alone in a drought.",
        "aphids": "Spray small green insects on leaves with water and a little soap. Ladybirds eat them, too.",
        "compost": "Peels, coffee and leaves go on the compost; meat and bread attract rats.",
        "rubbish": "Paper is collected on even weeks, plastic on odd ones. Bulky things are fetched after a call to "
        "Entsora.",
        "cat-food": "The cat gets 60 grams of dry food, half at seven and half at six in the evening. Her name is "
        "Pelusa.",
        "router": "When the internet is slow, unplug the router Nexo-9 for a minute. How long it needs to start: "
        "three minutes.",
        "key": "A spare key is with Mrs Adeyemi on the second floor.",
    },
    questions={
        "How can I remove white deposits from a water boiler?": "descaling",
        "Why is it dark in the kitchen?": "fuse",
        "What can I do about lice on my plants?": "aphids",
        "The heating in the living room is only lukewarm": "radiator",
        "I have locked myself out": "key",
        "My bike has a puncture": "flat-tyre",
        "How do I clean a sweater?": "wool",
        "There is a beeping noise on the ceiling": "smoke-detector",
        "How can I get rid of an old sofa?": "rubbish",
        "How long do I have to wait until the wifi works again?": "router",
        "F21": "washing-error",
        "Thermika 40": "boiler",
        "CR-123": "smoke-detector",
        "who is Pelusa": "cat-food",
        "Lodar 3 detector": "drill",
    },
)

MUSEUM = Folder(
    documents={
        "opening": "The museum is open daily except Mondays, from ten to six, and on Thursdays until nine.",
        "tickets": "Tickets cost 12 euros. Children under fourteen and unemployed people enter free of charge.",
        "wheelchair": "All halls can be reached with a lift. Wheelchairs are lent at the cloakroom.",
        "photos": "Pictures may be taken without flash. Tripods need a permit from the press office.",
        "astrolabe": "Inventory A-1187: astrolabe of brass, Toledo, about 1067. It shows the height of stars above "
        "the horizon.",
        "sextant": "Inventory A-2203: sextant by Harlan & Voss, 1821. Sailors measured the sun at noon with it to "
        "learn their latitude.",
        "clock": "Inventory C-310: marine clock with a spring, 1772. A ship that keeps the time of its port knows its "
        "longitude.",
        "loom": "Inventory T-045: loom from Lyon, controlled by cards with holes, 1804. It is an ancestor of the "
        "computer.",
        "steam-engine": "Inventory E-009: beam engine that pumped water out of a coal mine for seventy years.",
        "printing": "Inventory P-118: hand press with movable letters of lead. Two men printed 200 sheets an hour.",
        "telegraph": "Inventory K-071: telegraph key. Messages were sent over a wire as short and long signals.",
        "phonograph": "Inventory S-204: phonograph with a cylinder of wax, the first machine that played back a voice.",
        "camera": "Inventory F-032: camera of walnut, 1889. The plate was exposed for four seconds, so nobody could "
        "move.",
        "microscope": "Inventory O-015: single lens of Mirjam Okkerse, with which she saw living cells in a drop of "
        "pond water.",
        "xray": "Inventory M-090: tube for X-rays, with which doctors looked at broken bones without cutting.",
        "vaccine": "Inventory M-112: lancet used against smallpox in villages of the north.",
        "glider": "Inventory V-001: glider of willow and cotton that flew 250 metres from a hill in 1893.",
        "velocipede": "Inventory V-014: velocipede with a large front wheel; falling from it was called a header.",
        "tram": "Inventory V-050: tram number 8, which crossed the old town until 1961.",
        "kitchen-1920": "A kitchen of 1926, planned so that a cook takes as few steps as possible.",
        "school-tours": "Classes book a guide two weeks ahead with Mr Ferrant. Up to 25 pupils take part.",
        "shop": "The shop sells books, kits and the star chart of the house. It closes half an hour before the halls.",
        "cafe": "In the courtyard, soup, cake and coffee are served under the old chestnut.",
        "restoration": "In the workshop, visitors watch how rust is removed and wood is mended, each Saturday at two.",
        "history": "The collection was founded by the widow Corvinia Hale in 1902, who left her house to the town.",
    },
    questions={
        "How did seamen find out where they were from north to south?": "sextant",
        "How much does it cost to get in?": "tickets",
        "Is there something to eat?": "cafe",
        "What can be used to look inside the body?": "xray",
        "How long did people have to hold still for a portrait?": "camera",
        "Which machine could be programmed?": "loom",
        "Can I come in the evening?": "opening",
        "Early aeroplane": "glider",
        "Who started the museum?": "history",
        "How could news travel faster than a horse?": "telegraph",
        "A-1187": "astrolabe",
        "Harlan & Voss": "sextant",
        "Corvinia Hale": "history",
        "Mr Ferrant": "school-tours",
        "tram number 8": "tram",
    },
)

FOLDERS = {"handbook": HANDBOOK, "household": HOUSEHOLD, "museum": MUSEUM}
