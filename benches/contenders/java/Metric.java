package contenders;

import java.io.IOException;
import java.io.InputStream;
import java.lang.invoke.MethodHandles;
import java.nio.charset.StandardCharsets;

/** An item. Its class is its type; {@code kind} is the number of that class. */
abstract class Metric {
    final int kind;
    final long value;

    Metric(int kind, long value) {
        this.kind = kind;
        this.value = value;
    }

    /** A new item of the same type. */
    abstract Metric fresh(long value);

    /** The template of every type: the others are copies of this class under other names. */
    static final class Type00000 extends Metric {
        Type00000(int kind, long value) {
            super(kind, value);
        }

        @Override
        Metric fresh(long value) {
            return new Type00000(kind, value);
        }
    }

    /** Creates one item each of {@code types} different classes. */
    static Metric[] oneOfEachType(int types) throws IOException, ReflectiveOperationException {
        Metric[] metrics = new Metric[types];
        String template = Type00000.class.getSimpleName();
        byte[] original;
        try (InputStream file = Metric.class.getResourceAsStream("Metric$" + template + ".class")) {
            original = file.readAllBytes();
        }
        // In Latin-1 every byte is one character, and all names have the same length: the rest of
        // the class file does not shift.
        String text = new String(original, StandardCharsets.ISO_8859_1);
        for (int kind = 0; kind < types; kind++) {
            Class<?> type = Type00000.class;
            if (kind > 0) {
                String copy = text.replace(template, String.format("Type%05d", kind));
                type =
                        MethodHandles.lookup()
                                .defineClass(copy.getBytes(StandardCharsets.ISO_8859_1));
            }
            var constructor = type.getDeclaredConstructor(int.class, long.class);
            metrics[kind] = (Metric) constructor.newInstance(kind, 0L);
        }
        return metrics;
    }
}
