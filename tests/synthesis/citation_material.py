"""Sentences written by hand for the citation cases: paraphrases of the sample corpus, and what it does not say."""
# ruff: noqa: E501 - a sentence in a line, the same in other words beside it

from __future__ import annotations

#: Words of the source sentence, and the same in other words.
PARAPHRASES: dict[str, list[tuple[str, str]]] = {
    "en": [
        (
            "Economy class is the standard for flights",
            "For flights shorter than 6 hours, economy class is the standard.",
        ),
        (
            "A private car is reimbursed at EUR 0.23",
            "Employees who drive their own car are reimbursed EUR 0.23 for each kilometre.",
        ),
        (
            "A receipt is required for every item of EUR 25",
            "You must hand in a receipt for any item that costs EUR 25 or more.",
        ),
        (
            "Entertaining customers is limited",
            "When customers are entertained, at most EUR 60 per person may be spent, own staff included.",
        ),
        (
            "Employees who travel more than four times",
            "A company card with a limit of EUR 3,000 per month is given to employees who make more than four trips a year.",
        ),
        (
            "Group bookings of 8 people or more",
            "The travel coordinator handles bookings for groups of 8 or more people and compares the offers of two agencies.",
        ),
        ("Revenue rose by 11.8 percent", "Revenue grew 11.8 percent, from 61.2 million to 68.4 million."),
        (
            "The NS-5 profile probe was launched",
            "Launched in February 2024, the NS-5 profile probe sold 9,800 units within eight months.",
        ),
        (
            "Headcount at year end was 386",
            "At the end of the year the company employed 386 people: 204 in Leeds, 131 in Utrecht and 51 in Denver.",
        ),
        ("The term loan fell from 9.0", "The company reduced its term loan from 9.0 million to 7.5 million."),
        (
            "Orders on hand amounted to 18.9",
            "At year end the orders on hand were worth 18.9 million, compared with 14.2 million a year before.",
        ),
        ("Full time is 38 hours a week", "A full-time week has 38 hours."),
        (
            "Up to 5 days may be carried",
            "Employees can carry up to 5 days of leave into the following year, and these must be taken by 31 March.",
        ),
        (
            "The parent who gives birth receives",
            "The parent giving birth gets 20 weeks at full pay, and at least 6 of them come after the birth.",
        ),
        (
            "Notice is one month for both sides",
            "During the first 5 years the notice period is one month for both sides, later it is two months.",
        ),
        (
            "An order may grow by up to 10 percent",
            "Without a new signature an order can grow by at most 10 percent, up to EUR 5,000.",
        ),
        ("Tenders are sent to at least 4 suppliers", "At least 4 suppliers receive each tender."),
        ("Standard terms are 45 days net", "Suppliers are normally paid at 45 days net."),
        ("Forwards are designated as cash flow hedges", "The company designates forwards as cash flow hedges."),
        ("Interest is fixed at 4.1 percent", "The interest rate of the term loan is fixed at 4.1 percent."),
        ("Wage increases are planned at 3.2", "From 1 January 2026 wages are planned to increase by 3.2 percent."),
        (
            "Passwords have at least 14 characters",
            "A password needs at least 14 characters and is checked against lists of leaked passwords.",
        ),
        ("Only counsel may lift it", "The hold on deletion can only be lifted by counsel."),
        (
            "A sabbatical of up to three months",
            "After 6 years of service, employees may take a sabbatical of up to three months.",
        ),
    ],
    "es": [
        (
            "Los vehículos sin emisiones de escape tienen",
            "Las tasas T-01, T-02 y T-04 se reducen un 30 % para los vehículos sin emisiones de escape.",
        ),
        (
            "Si el solicitante desiste antes del primer ensayo",
            "Cuando el solicitante desiste antes del primer ensayo, recupera el 60 % de la tasa.",
        ),
        (
            "El servicio técnico dispone de 90 días",
            "Todos los ensayos deben realizarse en 90 días naturales desde la admisión por el servicio técnico.",
        ),
        ("Un ensayo no superado puede repetirse", "Un ensayo que no se supera se puede repetir dos veces."),
        (
            "Tiene una validez de 24 meses",
            "El informe de ensayo es válido durante 24 meses para presentarlo en una solicitud.",
        ),
        (
            "La Agencia resuelve en un plazo de 45 días",
            "La Agencia tiene 45 días hábiles para resolver desde que recibe el informe de ensayo favorable.",
        ),
        (
            "La resolución favorable da lugar",
            "El certificado tiene una vigencia de siete años y se puede renovar por periodos de cuatro.",
        ),
        (
            "Si cambian más de tres sistemas",
            "Hace falta una nueva homologación cuando cambian a la vez más de tres sistemas.",
        ),
        ("Se conceden como máximo 25 permisos", "Cada fabricante puede obtener 25 permisos al año como máximo."),
        (
            "El sonómetro es de clase 1",
            "Se utiliza un sonómetro de clase 1 que se calibra antes y después de cada serie.",
        ),
        (
            "El ruido de fondo es al menos 12",
            "El ruido de fondo debe quedar al menos 12 dB(A) por debajo del ruido del vehículo.",
        ),
        (
            "Los dos micrófonos se colocan",
            "Los micrófonos, dos, se sitúan a 7,5 m de la línea central y a 1,2 m de altura sobre el suelo.",
        ),
        (
            "La contrapresión no supera",
            "La contrapresión puede superar la del silenciador original en un 20 % como máximo.",
        ),
        ("El nivel máximo es de 74", "El aviso tiene un nivel máximo de 74 dB(A)."),
        (
            "Los neumáticos llevan al menos seis",
            "Cada neumático lleva por lo menos seis indicadores de desgaste en la circunferencia.",
        ),
        ("La rueda de uso temporal limita", "Con la rueda de uso temporal la velocidad se limita a 80 km/h."),
        ("El testigo es ámbar", "El testigo del sistema es de color ámbar."),
        (
            "En 2023 el tiempo medio entre",
            "El tiempo medio entre la solicitud y el certificado en 2023 fue de 134 días naturales para M1 y de 171 para N3.",
        ),
        ("La cita se pide con un máximo", "La cita puede pedirse con 60 días de antelación como máximo."),
        (
            "La sede central está en la avenida",
            "La sede central se encuentra en Puerto Sereno, en la avenida del Faro, 112.",
        ),
        (
            "Contra las resoluciones de la Agencia",
            "Las resoluciones de la Agencia pueden recurrirse en alzada ante el ministro en 30 días naturales.",
        ),
        (
            "El fabricante sin domicilio en Alborada",
            "Un fabricante que no tiene domicilio en Alborada nombra un único representante establecido en el país.",
        ),
        ("La Agencia verifica cada planta", "Cada planta es verificada por la Agencia cada 24 meses."),
        (
            "El recurso se entiende desestimado",
            "Si el ministro no resuelve en tres meses, el recurso se entiende desestimado.",
        ),
    ],
    "th": [
        ("ค่าคำขอและค่าพยาน รวม 100 บาท", "ค่าคำขอกับค่าพยานรวมกันเป็นเงิน 100 บาทต่อแปลง"),
        ("โดยทั่วไปผู้ซื้อกับผู้ขายออก", "โดยทั่วไปค่าจดทะเบียนผู้ซื้อและผู้ขายออกกันคนละครึ่ง"),
        ("มีเพดาน 180,000 บาท", "ค่าธรรมเนียมรหัส ธน-04 มีเพดานอยู่ที่ 180,000 บาทต่อสัญญา"),
        ("การจำนองกับสหกรณ์การเกษตร", "การจำนองกับสหกรณ์การเกษตรได้รับยกเว้นค่าธรรมเนียม หากวงเงินไม่เกิน 500,000 บาท"),
        ("เมื่อเสียภาษีธุรกิจเฉพาะแล้ว", "ผู้ที่เสียภาษีธุรกิจเฉพาะแล้วไม่ต้องเสียอากรอีก"),
        ("ที่ดินที่ได้มาทางมรดกให้ถือว่า", "ที่ดินซึ่งได้มาทางมรดกให้ถือว่าถือครองครบ 5 ปีแล้ว"),
        ("ใบสั่งมีอายุ 7 วัน", "ใบสั่งชำระที่เจ้าหน้าที่ออกให้มีอายุ 7 วัน"),
        ("ที่ดินที่ถือ น.ส.3 ต้องปิดประกาศ", "สำหรับที่ดินที่ถือ น.ส.3 จะต้องปิดประกาศ 30 วันก่อน"),
        ("ผู้มีชื่อในโฉนดเป็นเจ้าของ", "ผู้ที่มีชื่อในโฉนดถือเป็นเจ้าของเต็มที่ และมีสิทธิใช้ ขาย ยกให้ และจำนอง"),
        ("ทายาทต้องยื่นคำขอภายใน 180 วัน", "ทายาทจะต้องยื่นคำขอภายใน 180 วัน นับแต่วันที่ผู้ถือเดิมเสียชีวิต"),
        ("ผู้จองต้องเริ่มทำประโยชน์", "ผู้จองจะต้องเริ่มทำประโยชน์ในที่ดินภายใน 6 เดือน"),
        ("หนึ่งเฮกตาร์เท่ากับ", "1 เฮกตาร์เท่ากับ 6.25 ไร่ หรือ 10,000 ตารางเมตร"),
        ("สัญญาเช่าเกิน 3 ปีต้องจดทะเบียน", "หากเช่าเกิน 3 ปี สัญญาเช่าต้องจดทะเบียน"),
        ("ขอคัดสำเนาทะเบียนล่าสุด", "ควรขอคัดสำเนาทะเบียนล่าสุดซึ่งมีอายุไม่เกิน 15 วัน"),
        ("หนึ่งวายาวเท่ากับสองเมตร", "ความยาวหนึ่งวาเท่ากับสองเมตร"),
        ("เจ้าของโฉนดเลขที่ 10234", "เจ้าของโฉนดเลขที่ 10234 ซื้อที่ดินไว้เมื่อวันที่ 14 มิถุนายน 2561"),
        ("มีวงเงินจำนอง 2,500,000", "วงเงินจำนองของโฉนดเลขที่ 45817 คือ 2,500,000 บาท"),
        ("แปลงหลังเล็กกว่าเกือบสิบเท่า", "แปลงหลังมีขนาดเล็กกว่าเกือบสิบเท่า แต่มีราคาประเมินใกล้เคียงกัน"),
    ],
}

#: What the sample corpus does not say, in its manner.
INVENTED: dict[str, list[str]] = {
    "en": [
        "Travellers collect loyalty points that they may spend on private holidays.",
        "The canteen serves a vegetarian menu on two days of the week.",
        "Employees may bring their dogs to the office after talking to the team.",
        "The board decided to close the plant and to move production abroad.",
        "Suppliers must install solar panels on the roofs of their warehouses.",
        "The new chief scientist comes from a university in the south of the country.",
        "Customers can return a probe in any shop without giving a reason.",
        "Parking spaces in front of the building are assigned by lottery each spring.",
        "Hotel bookings are insured against earthquakes by the travel desk.",
        "The company plans to acquire a competitor that makes weather balloons.",
    ],
    "es": [
        "Los conductores jóvenes reciben un curso gratuito de seguridad en carretera.",
        "La Agencia organiza cada primavera una feria para coleccionistas de automóviles.",
        "El color de las placas se elige por votación popular entre los ciudadanos.",
        "Los talleres deben ofrecer café a los clientes mientras esperan.",
        "El fabricante regala un juego de herramientas con cada remolque vendido.",
        "Las motocicletas antiguas pueden circular gratis por las autopistas.",
        "El ministro inauguró un museo del transporte en la costa.",
        "Los espejos se limpian automáticamente cuando empieza a llover.",
        "Las bicicletas eléctricas necesitan un seguro obligatorio contra robo.",
        "Los inspectores llevan uniforme azul con botones dorados.",
    ],
    "th": [
        "สำนักงานเปิดร้านกาแฟให้ผู้มาติดต่อนั่งรอในวันเสาร์",
        "ผู้ซื้อจะได้รับกล้าไม้มงคลเป็นของขวัญจากเทศบาล",
        "เจ้าหน้าที่ทุกคนต้องแต่งชุดผ้าไหมในวันศุกร์",
        "รถไฟฟ้าสายใหม่จะวิ่งผ่านหมู่บ้านตอนกลางคืน",
        "นักเรียนสามารถยืมหนังสือจากห้องสมุดได้คนละหลายเล่ม",
        "ชาวบ้านช่วยกันสร้างสะพานไม้ไผ่ข้ามแม่น้ำทุกฤดูฝน",
        "โรงแรมริมหาดลดราคาห้องพักสำหรับครอบครัวใหญ่",
        "นายกเทศมนตรีประกาศแจกจักรยานให้เด็กนักเรียน",
        "ตลาดน้ำแห่งนี้มีชื่อเสียงเรื่องขนมหวานและดอกไม้",
        "แพทย์แนะนำให้ดื่มน้ำอุ่นหลังออกกำลังกายเสมอ",
    ],
}

#: Clauses that are put behind a true sentence.
ADDED: dict[str, list[str]] = {
    "en": [
        ", and everybody receives a free bicycle from the mayor",
        ", because the regulator fined a competitor last summer",
        ", which surprised many journalists and trade unions",
        ", while visitors enjoy complimentary champagne breakfasts",
        ", although scientists doubt whether penguins would agree",
    ],
    "es": [
        ", y además todos reciben una bicicleta gratis del alcalde",
        ", porque un periódico extranjero publicó fotografías escandalosas",
        ", lo que sorprendió a muchos periodistas y sindicatos",
        ", mientras los invitados disfrutan de champán francés",
        ", aunque varios científicos dudan de los pingüinos",
    ],
    "th": [
        " และทุกคนจะได้รับจักรยานฟรีจากนายกเทศมนตรี",
        " เพราะหนังสือพิมพ์ต่างประเทศลงภาพข่าวอื้อฉาว",
        " ซึ่งทำให้นักข่าวและสหภาพแรงงานประหลาดใจ",
        " พร้อมชมการแสดงดนตรีพื้นเมืองยามค่ำคืน",
        " แม้นักวิทยาศาสตร์สงสัยเรื่องนกเพนกวินอยู่",
    ],
}

#: Names that take the place of those of the corpus.
OTHER_NAMES: dict[str, list[str]] = {
    "en": ["Lopez", "Madrid", "Boston", "Contoso", "Harriet", "Oslo"],
    "es": ["Villanueva", "Gonzalo", "Lisboa", "Monteverde", "Teruel"],
    "th": ["สมศักดิ์ มั่งคั่ง", "วิชัย ใจดี", "ภูเก็ต", "กระบี่", "ปัตตานี"],
}

#: Freely worded: words of the source sentence, a true sentence, and a false one that is nearly the same.
FREE: dict[str, list[tuple[str, str, str]]] = {
    "en": [
        (
            "First class is never reimbursed",
            "The company does not pay for first class flights.",
            "The company pays for first class flights.",
        ),
        (
            "Alcohol is not reimbursed",
            "Alcohol is paid for only in modest amounts when clients are entertained.",
            "Alcohol is paid for in any amount on every trip.",
        ),
        (
            "Call your manager before 09:30",
            "Someone who is ill has to phone the manager by 09:30 on the first day.",
            "Someone who is ill has to phone the doctor by 11:30 on the first day.",
        ),
        (
            "Office staff may work at home up to three days",
            "Home office is possible on up to three days per week for office staff.",
            "Home office is possible on up to four days per week for office staff.",
        ),
        (
            "Each person has a learning budget",
            "Every fiscal year each employee can spend EUR 1,200 on learning and gets 5 paid days.",
            "Every fiscal year each employee can spend EUR 2,100 on learning and gets 5 paid days.",
        ),
        (
            "Options may cover at most 30 percent",
            "No more than 30 percent of a currency's hedged volume may be covered with options.",
            "No more than 60 percent of a currency's hedged volume may be covered with options.",
        ),
        (
            "Every entity reports its expected receipts",
            "Entities report by the 6th working day what they expect to receive and pay over the next 18 months.",
            "Entities report by the 6th working day what they expect to receive and pay over the next 24 months.",
        ),
        (
            "Segregation of duties is strict",
            "Whoever approves an order must not book the goods receipt or release the payment.",
            "Whoever approves an order should also book the goods receipt and release the payment.",
        ),
        (
            "An invoice without a purchase order number is returned",
            "Invoices that lack a purchase order number go back to the sender.",
            "Invoices that lack a purchase order number are paid by the CFO.",
        ),
        (
            "Voluntary turnover was 7.9",
            "In that year 7.9 percent of the staff left voluntarily.",
            "In that year 9.7 percent of the staff left voluntarily.",
        ),
        (
            "The Americas grew by 17.2 percent",
            "Growth in the Americas was 17.2 percent, supported by a distributor signed in Mexico in November 2023.",
            "Growth in the Americas was 17.2 percent, supported by a distributor signed in Brazil in November 2023.",
        ),
        (
            "The value of net assets in foreign subsidiaries",
            "Net assets of subsidiaries abroad are left unhedged.",
            "Net assets of subsidiaries abroad must be hedged at 75 percent.",
        ),
    ],
    "es": [
        (
            "Los documentos se presentan en español",
            "La documentación debe entregarse en español, y la que esté en otra lengua necesita traducción jurada.",
            "La documentación puede entregarse en inglés, y la que esté en otra lengua no necesita traducción jurada.",
        ),
        (
            "La extensión no prolonga la vigencia",
            "Obtener una extensión no alarga la vigencia del certificado.",
            "Obtener una extensión alarga la vigencia del certificado.",
        ),
        (
            "No se permite un interruptor",
            "Está prohibido instalar un interruptor que silencie el aviso.",
            "Está permitido instalar un interruptor que silencie el aviso.",
        ),
        (
            "Quien no acude sin avisar",
            "El solicitante que falta a la cita y no avisa 48 horas antes pierde la tasa.",
            "El solicitante que falta a la cita y no avisa 72 horas antes pierde la tasa.",
        ),
        (
            "Cuesta 38 coronas y se entrega",
            "El duplicado vale 38 coronas y se recoge en cualquier estación en tres días hábiles.",
            "El duplicado vale 83 coronas y se recoge en cualquier estación en tres días hábiles.",
        ),
        (
            "Las consultas técnicas por escrito",
            "La Agencia responde en siete días hábiles a las consultas técnicas escritas.",
            "La Agencia responde en nueve días hábiles a las consultas técnicas escritas.",
        ),
        (
            "La reparación es gratuita",
            "Los titulares no pagan la reparación.",
            "Los titulares pagan la mitad de la reparación a la Agencia.",
        ),
        (
            "Las sanciones muy graves las impone",
            "Es el ministro quien impone las sanciones muy graves.",
            "Es el Parlamento quien impone las sanciones muy graves.",
        ),
        (
            "El registro es público y gratuito",
            "Cualquiera puede consultar el registro, que es público y gratuito.",
            "Solo los fabricantes pueden consultar el registro, que cuesta 20 coronas.",
        ),
        (
            "Se prohíben los silenciadores con válvula",
            "No están permitidos los silenciadores con válvula de derivación que el conductor accione a mano.",
            "Están permitidos los silenciadores con válvula de derivación que el conductor accione a mano.",
        ),
        (
            "T-08 | Reforma de clase B",
            "Una reforma de clase B cuesta 120 coronas.",
            "Una reforma de clase B cuesta 275 coronas.",
        ),
        (
            "El reglamento entra en vigor",
            "La entrada en vigor del reglamento fue el 1 de marzo de 2020.",
            "La entrada en vigor del reglamento fue el 1 de mayo de 2020.",
        ),
    ],
    "th": [
        ("ชำระได้ด้วยเงินโอน", "ผู้ชำระเงินเลือกใช้เงินโอนหรือแคชเชียร์เช็คได้", "ผู้ชำระเงินเลือกใช้เงินสดหรือบัตรเครดิตได้"),
        ("หากมอบอำนาจให้ใช้แบบ", "การมอบอำนาจต้องใช้แบบ สตย-7 และมีพยานสองคน", "การมอบอำนาจต้องใช้แบบ สตย-9 และมีพยานสามคน"),
        (
            "คืนเอกสารสิทธิ์ภายในวันเดียวกัน",
            "เอกสารสิทธิ์จะคืนให้ภายในวันเดียวกันหลังแก้ชื่อในทะเบียน",
            "เอกสารสิทธิ์จะคืนให้ภายในสามสัปดาห์หลังแก้ชื่อในทะเบียน",
        ),
        (
            "เดือน และทำประโยชน์ให้ได้ร้อยละ 75",
            "ภายใน 3 ปีผู้จองต้องทำประโยชน์ให้ได้ร้อยละ 75 ของเนื้อที่",
            "ภายใน 3 ปีผู้จองต้องทำประโยชน์ให้ได้ร้อยละ 95 ของเนื้อที่",
        ),
        (
            "ความยินยอมด้วยวาจา",
            "เจ้าของคนใหม่ไม่ผูกพันกับความยินยอมด้วยวาจาของเพื่อนบ้าน",
            "เจ้าของคนใหม่ผูกพันกับความยินยอมด้วยวาจาของเพื่อนบ้าน",
        ),
        (
            "จะขาย ให้เช่า หรือจำนองไม่ได้",
            "ที่ดิน ส.ป.ก.4-01 ขายไม่ได้ ให้เช่าไม่ได้ และจำนองไม่ได้",
            "ที่ดิน ส.ป.ก.4-01 ขายได้ ให้เช่าได้ และจำนองได้",
        ),
        (
            "แต่ผู้ขายไถ่คืนได้ภายในกำหนด",
            "ในการขายฝากผู้ขายมีสิทธิไถ่คืนภายในกำหนดไม่เกิน 10 ปี",
            "ในการขายฝากผู้ขายมีสิทธิไถ่คืนภายในกำหนดไม่เกิน 20 ปี",
        ),
        ("เศษตั้งแต่ครึ่งตารางวา", "เศษที่มีตั้งแต่ครึ่งตารางวาให้ปัดขึ้น ถ้าต่ำกว่านั้นปัดทิ้ง", "เศษที่มีตั้งแต่ครึ่งตารางวาให้ปัดทิ้งเสมอและห้ามปัดขึ้น"),
        (
            "ยอมให้ต่างได้ถึงร้อยละ 10",
            "สำหรับ น.ส.3 ยอมให้ต่างได้ถึงร้อยละ 10 เพราะใช้แผนที่รูปลอย",
            "สำหรับ น.ส.3 ยอมให้ต่างได้ถึงร้อยละ 40 เพราะใช้แผนที่รูปลอย",
        ),
        ("สองงานเท่ากับ 0.5 ไร่", "0.5 ไร่คือสองงาน และ 0.75 ไร่คือสามงาน", "0.5 ไร่คือสองงาน และ 0.85 ไร่คือสามงาน"),
    ],
}
