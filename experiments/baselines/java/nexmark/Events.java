package baselines.nexmark;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;

/**
 * The events of experiments/nexmark/events.py, byte for byte: its text says how a field is made.
 *
 * @param <T> what a text is: made from a String once for each row of a table
 */
public final class Events<T> {
    public static final int PERSON = 0;
    public static final int AUCTION = 1;
    public static final int BID = 2;

    private static final int GROUP = 50;
    private static final int PERSONS = 1;
    private static final int AUCTIONS = 3;
    private static final long FIRST_ID = 1_000;
    private static final long FIRST_CATEGORY = 10;
    private static final long CATEGORIES = 5;
    private static final long HOT_EVERY = 100;
    private static final long ACTIVE_PERSONS = 1_000;
    private static final long IN_FLIGHT = 100;
    private static final long LEAD = 10;
    private static final long BASE_MS = 1_436_918_400_000L;
    private static final long[] POWERS = {1, 10, 100, 1_000, 10_000, 100_000};

    private static final int TEXTS = 1_024;
    private static final int COLD_CHANNELS = 10_000;
    private static final String[] HOT_CHANNELS = {"Google", "Facebook", "Baidu", "Apple"};
    private static final String[] FIRST_NAMES = {
        "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"
    };
    private static final String[] LAST_NAMES = {
        "Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"
    };
    private static final String[] CITIES = {
        "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"
    };
    private static final String[] STATES = {"AZ", "CA", "ID", "OR", "WA", "WY"};
    private static final int URLS = 1;
    private static final int BID_EXTRA = 2;
    private static final int NAMES = 3;
    private static final int DESCRIPTIONS = 4;
    private static final int AUCTION_EXTRA = 5;
    private static final int EMAILS = 6;
    private static final int CARDS = 7;
    private static final int PERSON_EXTRA = 8;

    private final Function<String, T> text;
    private final long eventsPerS;
    private final long longestMs;
    private final List<T> channels = new ArrayList<>();
    private final List<T> urls = new ArrayList<>();
    private final List<T> bidExtra;
    private final List<T> items;
    private final List<T> descriptions;
    private final List<T> auctionExtra;
    private final List<T> names = new ArrayList<>();
    private final List<T> emails = new ArrayList<>();
    private final List<T> cards = new ArrayList<>();
    private final List<T> cities = new ArrayList<>();
    private final List<T> states = new ArrayList<>();
    private final List<T> personExtra;

    public Events(Function<String, T> text, long eventsPerS) {
        this.text = text;
        this.eventsPerS = eventsPerS;
        this.longestMs = Math.max(1, 2 * IN_FLIGHT * GROUP * 1_000 / AUCTIONS / eventsPerS);
        for (int c = 0; c < COLD_CHANNELS + HOT_CHANNELS.length; c++) {
            channels.add(text.apply(c < COLD_CHANNELS ? "channel-" + c : HOT_CHANNELS[c - COLD_CHANNELS]));
            String path = letters(URLS, c, 15);
            String url = "https://www.nexmark.com/" + path.substring(0, 5) + "/" + path.substring(5, 10) + "/"
                    + path.substring(10) + "/item.htm?query=1";
            urls.add(text.apply(c % 10 == 0 ? url : url + "&channel_id=" + c * 2_654_435_761L % 2_147_483_647L));
        }
        bidExtra = cut(BID_EXTRA, 50, 81);
        items = cut(NAMES, 5, 20);
        descriptions = cut(DESCRIPTIONS, 50, 100);
        auctionExtra = cut(AUCTION_EXTRA, 250, 350);
        personExtra = cut(PERSON_EXTRA, 100, 150);
        for (String last : LAST_NAMES) {
            for (String first : FIRST_NAMES) {
                names.add(text.apply(first + " " + last));
            }
        }
        for (int i = 0; i < TEXTS; i++) {
            String email = letters(EMAILS, i, 12);
            emails.add(text.apply(email.substring(0, 7) + "@" + email.substring(7) + ".com"));
            cards.add(text.apply(card(letters(CARDS, i, 16))));
        }
        for (String city : CITIES) {
            cities.add(text.apply(city));
        }
        for (String state : STATES) {
            states.add(text.apply(state));
        }
    }

    private static String card(String letters) {
        StringBuilder digits = new StringBuilder();
        for (int i = 0; i < letters.length(); i++) {
            digits.append(i > 0 && i % 4 == 0 ? " " : "").append((letters.charAt(i) - 'a') % 10);
        }
        return digits.toString();
    }

    private List<T> cut(int table, int least, int most) {
        List<T> found = new ArrayList<>();
        for (int i = 0; i < TEXTS; i++) {
            found.add(text.apply(letters(table, i, most).substring(0, least + i % (most - least + 1))));
        }
        return found;
    }

    private static String letters(int table, int row, int length) {
        byte[] found = new byte[length];
        for (int j = 0; j < length; j++) {
            long mixed = mix(((long) table << 40) + row * 1_024L + j / 8 + 1);
            found[j] = (byte) ('a' + (mixed >>> j % 8 * 8 & 255) % 26);
        }
        return new String(found, StandardCharsets.US_ASCII);
    }

    /** The output function of splitmix64. */
    static long mix(long number) {
        number *= 0x9E3779B97F4A7C15L;
        number ^= number >>> 30;
        number *= 0xBF58476D1CE4E5B9L;
        number ^= number >>> 27;
        number *= 0x94D049BB133111EBL;
        return number ^ number >>> 31;
    }

    private static long hash(long number, int k) {
        return mix(4 * number + k + 1);
    }

    private static long bits(long hashed, int at, int count) {
        return hashed >>> at & (1L << count) - 1;
    }

    private static <T> T of(List<T> table, long row) {
        return table.get((int) row);
    }

    private static long price(long hashed, int at) {
        return (100 + bits(hashed, at + 16, 16) % 900) * POWERS[(int) (bits(hashed, at, 16) % POWERS.length)];
    }

    private static long activePerson(long group, long drawn) {
        long active = Math.min(group + 1, ACTIVE_PERSONS);
        return group + 1 - active + drawn % (active + LEAD);
    }

    /** PERSON, AUCTION or BID. */
    public static int kind(long number) {
        long offset = number % GROUP;
        return offset < PERSONS ? PERSON : offset < PERSONS + AUCTIONS ? AUCTION : BID;
    }

    /** The columns of an event: Long for numbers and times (milliseconds), T for texts. */
    public Object[] event(long number) {
        int kind = kind(number);
        return kind == PERSON ? person(number) : kind == AUCTION ? auction(number) : bid(number);
    }

    private long timeMs(long number) {
        return BASE_MS + number * 1_000 / eventsPerS;
    }

    private Object[] bid(long number) {
        long first = hash(number, 0);
        long second = hash(number, 1);
        long group = number / GROUP;
        long last = group * AUCTIONS + AUCTIONS - 1;
        long low = Math.max(last - IN_FLIGHT, 0);
        long auction = bits(first, 0, 1) == 0
                ? last / HOT_EVERY * HOT_EVERY
                : low + bits(first, 1, 16) % (last - low + 1 + LEAD);
        long bidder = bits(first, 17, 2) > 0
                ? group / HOT_EVERY * HOT_EVERY + 1
                : activePerson(group, bits(first, 19, 20));
        long channel = bits(second, 32, 1) == 0
                ? COLD_CHANNELS + bits(second, 33, 2)
                : bits(second, 35, 14) % COLD_CHANNELS;
        return new Object[] {
            auction + FIRST_ID,
            bidder + FIRST_ID,
            price(second, 0),
            of(channels, channel),
            of(urls, channel),
            timeMs(number),
            of(bidExtra, bits(first, 39, 10))
        };
    }

    private Object[] auction(long number) {
        long first = hash(number, 0);
        long second = hash(number, 1);
        long third = hash(number, 2);
        long group = number / GROUP;
        long seller = bits(first, 0, 2) > 0
                ? group / HOT_EVERY * HOT_EVERY
                : activePerson(group, bits(first, 2, 20));
        long initial = price(second, 0);
        return new Object[] {
            group * AUCTIONS + number % GROUP - PERSONS + FIRST_ID,
            of(items, bits(first, 22, 10)),
            of(descriptions, bits(first, 32, 10)),
            initial,
            initial + price(second, 32),
            timeMs(number),
            timeMs(number) + 1 + bits(third, 0, 32) % longestMs,
            seller + FIRST_ID,
            FIRST_CATEGORY + bits(third, 32, 16) % CATEGORIES,
            of(auctionExtra, bits(first, 42, 10))
        };
    }

    private Object[] person(long number) {
        long first = hash(number, 0);
        long second = hash(number, 1);
        return new Object[] {
            number / GROUP + FIRST_ID,
            of(names, bits(first, 0, 16) % names.size()),
            of(emails, bits(first, 16, 10)),
            of(cards, bits(first, 26, 10)),
            of(cities, bits(second, 0, 16) % cities.size()),
            of(states, bits(second, 16, 16) % states.size()),
            timeMs(number),
            of(personExtra, bits(first, 36, 10))
        };
    }

    /** Arguments EVENTS_PER_S FIRST COUNT, repeated: prints these events, their columns with tabs between. */
    public static void main(String[] arguments) {
        StringBuilder out = new StringBuilder();
        for (int at = 0; at < arguments.length; at += 3) {
            Events<String> events = new Events<>(Function.identity(), Long.parseLong(arguments[at]));
            long first = Long.parseLong(arguments[at + 1]);
            long end = first + Long.parseLong(arguments[at + 2]);
            for (long number = first; number < end; number++) {
                String separator = "";
                for (Object field : events.event(number)) {
                    out.append(separator).append(field);
                    separator = "\t";
                }
                out.append('\n');
            }
        }
        System.out.print(out);
    }
}
