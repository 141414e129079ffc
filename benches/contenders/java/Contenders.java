package contenders;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;

/**
 * The contenders on the Java virtual machine, in one process each, with the clock and output of
 * those in Rust.
 *
 * <p>{@code java -cp CLASSES contenders.Contenders --contender jdk --workload headline --rounds 3
 * --warm-up-s 30}
 */
public final class Contenders {
    private Contenders() {}

    public static void main(String[] words) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int word = 0; word < words.length; word++) {
            options.put(words[word], words[word].equals("--check") ? "" : words[++word]);
        }
        Workload workload = Workload.named(options.get("--workload"));
        boolean check = options.containsKey("--check");
        int defaultItems = check ? 3_200_000 : workload.items;
        int items = Integer.parseInt(options.getOrDefault("--items", "" + defaultItems));
        items -= items % workload.producers; // each producer produces the same number

        Tally tally = new Tally(workload.types, check ? items : 0);
        Metric[] metrics = Metric.oneOfEachType(workload.types);
        Contender contender = start(options.get("--contender"), workload, metrics, tally);
        Measure measure =
                new Measure(options.get("--contender"), workload, items, metrics, contender, tally);
        if (check) {
            measure.check();
        } else {
            int rounds = Integer.parseInt(options.getOrDefault("--rounds", "3"));
            int warmUp = Integer.parseInt(options.getOrDefault("--warm-up-s", "30"));
            boolean newItems = Set.of("jdk-new", "jdk-plain").contains(options.get("--contender"));
            measure.measure(warmUp, rounds, newItems);
        }
    }

    /** Loads the class by name, so that the others compile and run without the Disruptor's jar. */
    private static Contender start(String name, Workload workload, Metric[] metrics, Tally tally)
            throws Exception {
        String className = switch (name) {
            case "jdk", "jdk-new", "jdk-plain" -> "JdkQueue";
            case "disruptor-thread" -> "DisruptorPerThread";
            case "disruptor-partition" -> "DisruptorPerPartition";
            default -> throw new IllegalArgumentException("unknown contender " + name);
        };
        return (Contender) Class.forName("contenders." + className)
                .getDeclaredConstructor(Workload.class, Metric[].class, Tally.class)
                .newInstance(workload, metrics, tally);
    }
}
