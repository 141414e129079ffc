package contenders;

/** A queue under measurement. Its constructor starts the drain threads. */
interface Contender {
    /** Puts one item in, and waits while there is no room. */
    void produce(Metric metric) throws InterruptedException;

    /** Ends the drain threads, after all was handled. */
    void stop() throws InterruptedException;
}
